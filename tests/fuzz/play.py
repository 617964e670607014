"""`./test fuzz --hours N [--seed S]`: play random attackers for hours, or one game again by its seed."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest


def main() -> int:
    parser = argparse.ArgumentParser(prog="./test fuzz", description="Play random attackers against every host verb.")
    parser.add_argument("--hours", type=float, default=1.0, help="how long, as each of both users (default: 1)")
    parser.add_argument("--seed", type=int, help="play one game again")
    given = parser.parse_args()
    os.environ["AW_FUZZ_SECONDS"] = str(given.hours * 3600)
    if given.seed is not None:
        os.environ["AW_FUZZ_SEED"] = str(given.seed)
    return int(pytest.main([str(Path(__file__).parent / "test_fuzz.py"), "-q", "-n", "0"]))


if __name__ == "__main__":
    sys.exit(main())

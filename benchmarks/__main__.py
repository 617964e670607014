"""./bench [AREA…]: print the table, and keep it as JSON in bench-results/."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from harness import Result, measure

HERE = Path(__file__).parent
AREAS = sorted(path.stem.removeprefix("rows_") for path in HERE.glob("rows_*.py"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="./bench", description=__doc__)
    parser.add_argument("areas", nargs="*", choices=[*AREAS, []], metavar="AREA", help=f"of {', '.join(AREAS)}")
    parser.add_argument("--only", metavar="TEXT", help="rows whose name holds this text")
    args = parser.parse_args()
    scratch = tempfile.mkdtemp(prefix="workstead-bench-", dir=os.environ.get("AW_BENCH_DIR"))
    results: list[tuple[str, Result]] = []
    try:
        for area in args.areas or AREAS:
            rows = importlib.import_module(f"rows_{area}").rows
            print(f"\n{area}")
            for row in rows(os.path.join(scratch, area)):
                if args.only and args.only not in row.name:
                    continue
                result = measure(row)
                results.append((area, result))
                _print(result)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    target = HERE.parent / "bench-results"
    target.mkdir(exist_ok=True)
    path = target / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    machine = {"python": platform.python_version(), "kernel": platform.release(), "cores": os.cpu_count()}
    path.write_text(json.dumps({"machine": machine, "rows": [{"area": a, **asdict(r)} for a, r in results]}, indent=1))
    print(f"\nkept in {path.relative_to(HERE.parent)}")


def _print(result: Result) -> None:
    ours, *others = result.arms.items()
    parts = [f"{ours[0]} {_amount(ours[1])}"]
    parts += [f"{name} {_amount(arm)} = {_ratio(arm['ratio'])}" for name, arm in others]
    print(f"  {result.name}\n      {'   '.join(parts)}{f'   (aim: {result.aim})' if result.aim else ''}", flush=True)


def _amount(arm: dict[str, float]) -> str:
    if "mb" in arm:
        return f"{_short(arm['mb'])} MB"
    return f"{_short(arm['median_ms'])} ms [{_short(arm['low_ms'])}-{_short(arm['high_ms'])}]"


def _short(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _ratio(value: float) -> str:
    return f"{value:.2f}x" if value >= 0.5 else f"1/{1 / value:,.1f}" if value else "-"


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()

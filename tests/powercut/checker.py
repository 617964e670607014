"""A process that is started once and opens many homes, each in a child with disks, mounts and processes of its own.

    python -m powercut.checker        one request a line on stdin, one list of problems a line on stdout

Everything that `check.py` needs is imported before the first request; a child then takes a few milliseconds to start
instead of the half second that the imports take.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from powercut import check
from powercut.alone import alone, as_user, load_all


def answer(request: dict[str, Any]) -> Any:
    look = check.recover if request["only_recover"] else check.check
    return alone(request["mounts"], lambda: as_user(request["uid"], lambda: look(request)))


if __name__ == "__main__":
    load_all()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)

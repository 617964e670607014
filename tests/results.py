"""How a supervised run ended, as its supervisor wrote it down."""

from __future__ import annotations

import json
import os

from workstead.system.process.supervisor import Result


def find_result(directory: str) -> Result | None:
    """The result in the directory of a run; None until there is one."""
    try:
        with open(os.path.join(directory, "result"), "rb") as file:
            return Result(**json.loads(file.read()))
    except FileNotFoundError:
        return None

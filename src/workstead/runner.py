"""The supervisor process of one run, started by a library or a server: `python -c …runner.main() HOME RUN`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Open the home and run the command to its end. The parent process passes the settings in the environment."""
    from workstead.core.home import Home
    from workstead.core.run_supervision import supervise
    from workstead.model.event import Caller
    from workstead.settings import load_settings

    _, home_path, run_id = sys.argv
    os.chdir("/")
    settings = load_settings(os.environ, "/", system_directory="")
    caller = Caller(
        actor_id=os.environ.get("AW_ACTOR") or "owner",
        correlation_id=os.environ.get("AW_CORRELATION_ID") or "",
        causation_id=os.environ.get("AW_CAUSATION_ID") or "",
    )
    supervise(Home.open(home_path, settings, caller), run_id)
    os._exit(0)

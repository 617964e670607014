"""Summarise every workspace, from the views alone."""

from __future__ import annotations

import time

from workstead.model.overview import ordered, summarise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.overview import Summary


def overview(home: Home, task: str | None = None) -> list[Summary]:
    """Return a summary of each workspace; what waits for an answer comes first, then what runs, then the newest."""
    runs: dict[str, dict[str, Any]] = {}
    for record in home.log.find_one_each("run", task=task):
        if not record["box"]:  # a command server is no work: it waits for the next command
            known = runs.get(record["uid"])
            runs[record["uid"]] = max(known, record, key=lambda each: str(each["run_id"])) if known else record
    first = {record["uid"]: record for record in home.log.find_one_each("snapshot", oldest=True)}
    now = time.time()
    asked: dict[str, list[dict[str, Any]]] = {}
    for record in home.log.find_all("approval", task=task, live_only=True):
        if record["state"] == "open" and record["expires_at"] > now:
            asked.setdefault(record["uid"], []).append(record)
    return ordered(
        summarise(record, runs.get(record["uid"]), asked.get(record["uid"], ()), first.get(record["uid"]))
        for record in home.log.find_all("workspace", task=task, live_only=True)
        if record["state"] != "aborted"
    )

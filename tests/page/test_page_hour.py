"""Ten agents at work for a while, looked at in three tabs: neither the server nor the browser grows with it.

`AW_PAGE_MINUTES=60` makes it an hour at twenty events a second, with a line of figures for each minute (`pytest -s`);
without it, some seconds at a much higher pace.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
from playwright.sync_api import Browser, CDPSession, Page

from browsing import Server
from workstead.local import Local

MINUTES = float(os.environ.get("AW_PAGE_MINUTES", "0.3"))  # read now: a test's environment is empty
PER_SECOND = 20 if MINUTES >= 1 else 100
DESKS = 50 if MINUTES >= 1 else 10
TALKS = "n=0; while :; do n=$((n+1)); echo line $n of what an agent says while it works; sleep 0.2; done"
MIB = 1 << 20


class Load:
    """Events at a steady pace: files written and seen to change, runs that print, states that are kept."""

    def __init__(self, workspaces: Local) -> None:
        self._workspaces = workspaces
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on)
        self.problem: BaseException | None = None
        self.desks = [workspaces.create(id=f"busy/{number:02}") for number in range(DESKS)]
        for desk in self.desks[1:4]:
            workspaces.start_watching(desk.id)
        self.talk = workspaces.run(self.desks[0].id, ["sh", "-c", TALKS])
        self.first = workspaces.last_position()

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._workspaces.stop(self.talk.id, at_once=True)
        for desk in self.desks[1:4]:
            self._workspaces.stop_watching(desk.id)

    def _go_on(self) -> None:
        began, step = time.monotonic(), 0
        try:
            while not self._over.is_set():
                missing = PER_SECOND * (time.monotonic() - began) - (self._workspaces.last_position() - self.first)
                if missing < 1:
                    self._over.wait(1 / PER_SECOND)
                else:
                    self._happen(step)
                    step += 1
        except BaseException as error:
            self.problem = error

    def _happen(self, step: int) -> None:
        desk, verbs = self.desks[step % DESKS], self._workspaces
        if step % 30 == 0:  # half of them where the timeline is looked at
            where = self.desks[1 if step % 60 else step % DESKS].id
            verbs.wait(verbs.run(where, ["sh", "-c", f"seq {step % 400}; echo {step}"], concurrent=True).id)
        elif step % 75 == 0:
            verbs.snapshot(desk.id, label=f"step {step}")
        elif step % 4 == 0:  # not through us: the watcher sees it
            with open(f"{self.desks[1 + step % 3].path}/work/seen-{step % 20}", "w") as file:
                file.write(f"{step}\n")
            verbs.write_file(desk.id, "work/log", f"{step}\n")
        else:
            verbs.write_file(desk.id, f"work/file-{step % 20}", f"step {step}\n")


class Meter:
    """What the server and the tabs use."""

    def __init__(self, browser: Browser, server: Server, tabs: list[Page]) -> None:
        self._browser = browser.new_browser_cdp_session()
        self._server = server
        self._tabs: list[CDPSession] = []
        for tab in tabs:
            session = tab.context.new_cdp_session(tab)
            session.send("Performance.enable")
            self._tabs.append(session)

    def read(self) -> dict[str, float]:
        found = {"server_mib": _resident(self._server.pid) / MIB, "server_cpu": _cpu_seconds(self._server.pid)}
        processes = self._browser.send("SystemInfo.getProcessInfo")["processInfo"]
        renderers = [each for each in processes if each["type"] == "renderer"]
        found["tabs_mib"] = sum(_resident(each["id"]) for each in renderers) / MIB
        found["tabs_cpu"] = sum(each["cpuTime"] for each in renderers)
        heap = nodes = 0.0
        for session in self._tabs:
            session.send("HeapProfiler.collectGarbage")
            metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
            heap += metrics["JSHeapUsedSize"]
            nodes += metrics["Nodes"]
        return {**found, "heap_mib": heap / MIB, "nodes": nodes}


def _resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        after_name = file.read().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.timeout(MINUTES * 120 + 300)
def test_neither_the_server_nor_the_tabs_grow_with_what_happens(
    page: Page, browser: Browser, server: Server, workspaces: Local
) -> None:
    load = Load(workspaces)
    tabs = [page, page.context.new_page(), page.context.new_page()]
    tabs[1].goto(f"{server.url}/desk/busy/00?tab=Runs")
    tabs[2].goto(f"{server.url}/desk/busy/01?tab=Timeline")
    meter = Meter(browser, server, tabs)
    samples: list[dict[str, Any]] = []
    pause = 60.0 if MINUTES >= 1 else MINUTES * 60 / 8
    with load:
        for number in range(max(8, round(MINUTES)) + 1):
            if number:
                page.wait_for_timeout(pause * 1000)
            sample = {"events": workspaces.last_position() - load.first, **meter.read()}
            samples.append(sample)
            print(number, " ".join(f"{key}={value:.1f}" for key, value in sample.items()), flush=True)
        assert load.problem is None, load.problem
        # What one looks at is alive to the end.
        now = samples[-1]["events"]
        page.bring_to_front()
        page.get_by_role("link", name="busy/00").wait_for()
        tabs[1].bring_to_front()
        tabs[1].get_by_text("what an agent says").last.wait_for()
        assert workspaces.last_position() - load.first >= now
    settled, last = samples[len(samples) // 3], samples[-1]
    assert last["server_mib"] - settled["server_mib"] < 30
    assert last["heap_mib"] - settled["heap_mib"] < 20
    assert last["nodes"] < 3 * settled["nodes"]

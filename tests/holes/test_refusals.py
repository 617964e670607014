"""An agent that is refused again and again: the home, the log and the page stay as small as for one that is not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from people import Person
from workstead.core import approval_requests
from workstead.errors import ApprovalRequired, TooManyApprovals
from workstead.local import Local
from workstead.model.tally import MOST_KEYS, Tally

ASK = """
import sys
import workstead
from workstead.errors import ApprovalRequired, WorksteadError
from workstead.core import approval_requests as ask
ask.MAX_OPEN, ask.MAX_PER_HOUR = 5, 12
with workstead.open() as workspaces:
    agent = workspaces.acting_as("run", agent_of="t/a")
    workspaces.write_file("t/a", "work/f", "first")
    for number in range(8):  # different questions at the same time
        try:
            agent.write_file("t/a", f"work/f", f"{number}" * (1 << 20))
        except WorksteadError as error:
            print(error.code)
    for each in workspaces.approvals():
        workspaces.deny(each.id)
    for number in range(20):  # one question after the other, each void because its object changed
        workspaces.write_file("t/a", "work/f", f"content {number}")
        try:
            agent.delete_file("t/a", "work/f")
        except WorksteadError as error:
            print(error.code)
"""


def test_questions_are_limited_in_number_and_over_time(person: Person) -> None:
    person.aw_ok("create", "t/a")
    said = person.python(ASK).split()
    assert said[:8] == ["approval_required"] * 5 + ["too_many_approvals"] * 3
    assert said[8:] == ["approval_required"] * 7 + ["too_many_approvals"] * 13  # five were counted before
    kept = [path for path in (person.home / "approvals").iterdir() if path.name.startswith("ask-")]
    assert len(kept) <= 6  # five that were denied, and the last one


def test_previews_that_wait_are_limited_in_size(workspaces: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    workspaces.create(id="t/a")
    workspaces.write_file("t/a", "work/f", "first\n")
    agent = workspaces.acting_as("run", agent_of="t/a")
    monkeypatch.setattr(approval_requests, "MAX_OPEN_BYTES", 80_000)
    for number in range(3):
        with pytest.raises(ApprovalRequired):
            agent.write_file("t/a", "work/f", f"{number}\n" * 9_900)
    with pytest.raises(TooManyApprovals):
        agent.write_file("t/a", "work/f", "one more\n")
    workspaces.write_file("t/a", "work/f", "the owner is not asked\n")


KNOCK = """
import socket
for number in range(300):
    with socket.create_connection(("127.0.0.1", 3128), 20) as proxy:
        proxy.sendall(b"CONNECT host-%d.example:443 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" % (number % PLACES))
        proxy.recv(1000)
"""


@pytest.mark.parametrize(("places", "most"), [(1, 10), (300, 110)])
def test_refused_requests_of_a_run_are_counted_and_not_listed(person: Person, places: int, most: int) -> None:
    person.aw_ok("create", "t/a")
    program = KNOCK.replace("PLACES", str(places))
    environment = person.aw_ok("run", "t/a", "--network", "example.com", "--", "sh", "-c", "echo $http_proxy")
    port = environment.strip().rstrip("/").rpartition(":")[2]
    person.aw_ok("run", "t/a", "--network", "example.com", "--", "python3", "-c", program.replace("3128", port))
    run = person.aw_json("runs", "t/a")[-1]
    assert run["denials"] == 300
    events = [json.loads(line) for line in person.aw_ok("--format", "json", "events").splitlines()]
    denied = [each for each in events if each["event_type"] == "network_denied"]
    assert sum(each["event_data"]["count"] for each in denied) == 300
    assert len(denied) <= most


def test_a_tally_says_everything_in_few_words() -> None:
    tally = Tally()
    said = [tally.add(("a",)) for _ in range(1000)]
    assert sum(map(bool, said)) == 10
    assert sum(said) + sum(count for _, count in tally.rest()) == 1000
    assert list(tally.rest()) == []
    assert all(tally.holds((str(number),)) and tally.add((str(number),)) for number in range(MOST_KEYS - 1))
    assert not tally.holds(("one more",))
    assert tally.holds(("a",))


def test_the_server_writes_few_lines_for_many_refusals() -> None:
    program = "from workstead.server.access_log import note_refusal\nfor _ in range(10000): note_refusal('x', path='/')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert len(done.stderr.splitlines()) <= 60  # thirty in each of the minutes that it may touch

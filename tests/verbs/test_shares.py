"""What the workspaces of a task share: areas, and mail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import workstead
from cli.aw_command import Aw
from needs import need_root
from workstead.core.home import Home
from workstead.core.shares import mounts_of
from workstead.errors import FolderNotFound, Invalid, InvalidConfig, LimitExceeded, NotFound, PolicyDenied
from workstead.local import Local
from workstead.model.event import Caller
from workstead.settings import Settings


def mounts(home_path: str, settings: Settings, workspaces: Local, id: str) -> list[tuple[str, str, bool]]:
    home = Home.open(home_path, settings, Caller())
    try:
        return mounts_of(home, workspaces.get(id))
    finally:
        home.close()


def told(workspaces: Local, id: str, command: str) -> tuple[int | None, str]:
    """How a command ended that an agent ran, and what it said."""
    run = workspaces.wait(workspaces.run(id, ["sh", "-c", command]).id)
    return run.exit_code, b"".join(chunk for _, _, chunk in workspaces.output(run.id)).decode()


def test_an_area_is_shared_by_the_workspaces_of_a_task(
    workspaces: Local, home_path: str, settings: Settings, tmp_path: Path
) -> None:
    need_root()
    host = tmp_path / "host"
    host.mkdir()
    (host / "data").write_text("from the host")
    read = {"shares": [{"name": "board"}, {"name": "host", "path": str(host)}]}
    write = {"shares": [{"name": "board", "mode": "rw"}]}
    workspaces.create(id="t/writer", config=write)
    workspaces.create(id="t/reader", config=read)
    workspaces.create(id="other/writer", config=write)
    workspaces.create(id="t/none")
    assert mounts(home_path, settings, workspaces, "t/none") == []
    writer, reader, stranger = (
        mounts(home_path, settings, workspaces, id) for id in ("t/writer", "t/reader", "other/writer")
    )
    assert writer == [(f"{home_path}/shares/t/board", "/mnt/shares/board", True)]
    assert reader == [(writer[0][0], "/mnt/shares/board", False), (str(host), "/mnt/shares/host", False)]
    assert stranger[0][0] == f"{home_path}/shares/other/board"
    assert told(workspaces, "t/writer", "echo hello > /mnt/shares/board/note")[0] == 0
    assert told(workspaces, "t/reader", "cat /mnt/shares/board/note /mnt/shares/host/data") == (
        0,
        "hello\nfrom the host",
    )
    assert told(workspaces, "t/reader", "echo x > /mnt/shares/board/note")[0] != 0
    assert told(workspaces, "t/reader", "echo x > /mnt/shares/host/data")[0] != 0
    (fork,) = workspaces.fork("t/writer")
    assert mounts(home_path, settings, workspaces, fork.id) == writer
    assert workspaces.diff("t/writer").changes == ()  # what is shared is no part of a workspace


@pytest.mark.parametrize("sandbox", ["bubblewrap", "none"])
def test_the_variables_lead_there_with_and_without_a_sandbox(workspaces: Local, tmp_path: Path, sandbox: str) -> None:
    need_root()
    host = tmp_path / "host"
    host.mkdir()
    (host / "data").write_text("from the host\n")
    shares = [{"name": "board", "mode": "rw"}, {"name": "host", "path": str(host)}]
    for name in ("a", "b"):
        workspaces.create(id=f"t/{name}", config={"shares": shares, "mailbox": True})
    workspaces.create(id="t/none")

    def told_by(id: str, command: str) -> str:
        run = workspaces.wait(workspaces.run(id, ["sh", "-ec", command], sandbox=sandbox).id)
        said = b"".join(chunk for _, _, chunk in workspaces.output(run.id)).decode()
        assert run.exit_code == 0, said
        return said

    told_by("t/a", 'echo hello > "$AW_SHARES/board/note"; mkdir "$AW_OUTBOX/b"; echo hi > "$AW_OUTBOX/b/1"')
    assert told_by("t/b", 'cat "$AW_SHARES/board/note" "$AW_SHARES/host/data"') == "hello\nfrom the host\n"
    assert told_by("t/b", 'cat "$AW_INBOX/a/b/1"') == "hi\n"
    assert [message.text for message in workspaces.messages("t/b")] == ["hi\n"]
    assert told_by("t/none", 'echo "${AW_SHARES-}${AW_INBOX-}${AW_OUTBOX-}"') == "\n"


@pytest.mark.parametrize(
    "shares",
    [
        "x",
        ["x"],
        [{}],
        [{"name": "../x"}],
        [{"name": "x", "mode": "w"}],
        [{"name": "x", "path": "relative"}],
        [{"name": "x", "path": 1}],
        [{"name": "x"}, {"name": "x"}],
        [{"name": "x", "more": "y"}],
    ],
)
def test_shares_that_make_no_sense(workspaces: Local, shares: object) -> None:
    with pytest.raises(InvalidConfig):
        workspaces.create(config={"shares": shares})


def test_directories_of_the_host_are_for_the_owner_and_never_our_own(
    workspaces: Local, tmp_path: Path, home_path: str
) -> None:
    host = {"shares": [{"name": "host", "path": str(tmp_path / "user")}]}
    with pytest.raises(PolicyDenied):
        workspaces.acting_as("agent").create(config=host)
    workspaces.create(config=host)
    with pytest.raises(FolderNotFound):
        workspaces.create(config={"shares": [{"name": "host", "path": str(tmp_path / "none")}]})
    os.symlink(home_path, tmp_path / "link")
    for path in ("/", str(tmp_path), home_path, f"{home_path}/workspaces", f"{tmp_path}/link"):
        with pytest.raises(InvalidConfig, match="files of Workstead itself"):
            workspaces.create(config={"shares": [{"name": "host", "path": path}]})


def test_agents_of_a_task_write_to_each_other(workspaces: Local, home_path: str, settings: Settings) -> None:
    need_root()
    for id in ("t/a", "t/b", "t/odd name"):
        workspaces.create(id=id, config={"mailbox": True})
    found = [(target, writable) for _, target, writable in mounts(home_path, settings, workspaces, "t/a")]
    assert found == [
        ("/mnt/outbox", True),
        ("/mnt/inbox/~owner", False),
        ("/mnt/inbox/b", False),
        ("/mnt/inbox/~odd%20name", False),
    ]
    assert told(workspaces, "t/a", "mkdir /mnt/outbox/b && echo from a > /mnt/outbox/b/1") == (0, "")
    assert told(workspaces, "t/a", "mkdir /mnt/inbox/b/a")[0] != 0
    assert told(workspaces, "t/b", "cat /mnt/inbox/*/b/*") == (0, "from a\n")
    sent = workspaces.send_message("t/b", "from the owner")
    workspaces.send_message("t/b", "from odd", sender="t/odd name")
    assert [(each.sender, each.text) for each in workspaces.messages("t/b")] == [
        ("a", "from a\n"),
        ("owner", "from the owner"),
        ("odd name", "from odd"),
    ]
    assert workspaces.get_message("t/b", sent.id) == sent
    assert workspaces.messages("t/a") == []
    events = [event.event_data for event in workspaces.events(types=("message_sent",))]
    assert [(each["sender"], each["size"]) for each in events] == [("owner", 14), ("odd name", 8)]
    assert "from the owner" not in str(events)


def test_mail_that_cannot_be_sent(workspaces: Local) -> None:
    for id in ("t/a", "u/a"):
        workspaces.create(id=id)
    with pytest.raises(workstead.errors.WorkspaceNotFound):
        workspaces.send_message("t/none", "x")
    with pytest.raises(Invalid, match="no task in common"):
        workspaces.send_message("t/a", "x", sender="u/a")
    with pytest.raises(LimitExceeded):
        workspaces.send_message("t/a", "x" * 70_000)
    with pytest.raises(NotFound):
        workspaces.get_message("t/a", "a/none")


def test_a_mailbox_full_of_traps_is_read_without_harm(workspaces: Local, home_path: str, tmp_path: Path) -> None:
    """An agent can put any kind of file below its name."""
    for id in ("t/a", "t/b"):
        workspaces.create(id=id)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    outbox = Path(home_path, "mail", "t", "a")
    (outbox / "b").mkdir(parents=True)
    os.symlink(secret, outbox / "b" / "link")
    os.mkfifo(outbox / "b" / "pipe")
    (outbox / "b" / "directory").mkdir()
    (outbox / "b" / "huge").write_bytes(b"\x1b[2J" + b"x" * 10_000_000)
    os.symlink(tmp_path, Path(home_path, "mail", "t", "linked"))
    (found,) = workspaces.messages("t/b")
    assert (found.sender, found.size, len(found.text)) == ("a", 10_000_004, 65536)
    os.rename(outbox / "b", outbox / "aside")
    os.symlink(tmp_path, outbox / "b")
    with pytest.raises(workstead.errors.Conflict):
        workspaces.send_message("t/b", "x", sender="t/a")
    assert workspaces.messages("t/b") == []
    assert sorted(os.listdir(tmp_path)) == ["home", "secret", "user"]


def test_mail_on_the_command_line(home_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    aw = Aw(home_path, capsys)
    for id in ("t/a", "t/b"):
        aw.ok("create", "--id", id)
    sent = aw.ok("mail", "send", "t/b", "hello", "there", "--from", "t/a")
    assert [each["text"] for each in aw.ok("mail", "list", "t/b")] == ["hello there"]
    assert aw("mail", "read", "t/b").out == aw("mail", "read", "t/b", sent["id"]).out == "hello there\n"
    assert "hello there" in aw("mail", "list", "t/b").out
    assert aw("mail", "send", "t/b", "\x1b[31mred").code == 0
    assert "\x1b" not in aw("mail", "read", "t/b").out + aw("mail", "list", "t/b").out
    assert aw("mail", "send", "t/b").code == 2
    assert aw("mail", "read", "t/b", "none").code == 3

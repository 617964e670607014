"""What the verbs do for an ordinary user, run as one: `rootless_verbs.py DIRECTORY` prints ok."""

from __future__ import annotations

import os
import shutil
import sys

import workstead
from sources.yard import listing, random_tree
from workstead.core.mounting import refresh
from workstead.settings import load_settings
from workstead.system.overlay import layers
from workstead.system.overlay.mount_daemon import Holder


def main(top: str) -> None:
    assert os.geteuid() != 0
    origin = f"{top}/origin"
    os.mkdir(origin)
    random_tree(origin, 4)
    with open(f"{origin}/text", "w") as file:
        file.write("one\n")
    settings = load_settings({"HOME": top}, top, system_directory=f"{top}/no-etc")
    if not layers.try_mechanism("rootless-overlay", top)[0]:
        sys.exit(77)
    with workstead.open(f"{top}/home", settings=settings) as workspaces:
        try:
            tell(workspaces, origin)
        finally:
            Holder(f"{top}/home/workspaces/.carrel").stop()
    print("ok")


def tell(workspaces: workstead.local.Local, origin: str) -> None:
    before = listing(origin)
    desk = workspaces.create(f"overlay:{origin}", id="t/a")
    assert desk.filled["mechanism"] == "rootless-overlay"
    workspaces.write_file(desk.id, "work/text", "two\n")
    assert listing(origin) == before
    forks = workspaces.fork(desk.id, count=2)
    workspaces.write_file(forks[0].id, "work/text", "three\n")
    texts = [workspaces.read_text(each.id, "work/text") for each in (desk, *forks)]
    assert texts == ["two\n", "three\n", "two\n"]
    assert [change.path for change in workspaces.diff(forks[1].id).changes] == ["text"]
    grown = workspaces.create(id="grown/a")
    workspaces.write_file(grown.id, "work/x", "x")
    (fork,) = workspaces.fork(grown.id)
    assert fork.filled["mechanism"] == "rootless-overlay"
    assert workspaces.read_text(fork.id, "work/x") == workspaces.read_text(grown.id, "work/x") == "x"
    workspaces.add_template("made", workspace=desk.id)
    assert workspaces.read_text(workspaces.create("template:made").id, "work/text") == "two\n"
    workspaces.apply(desk.id)
    with open(f"{origin}/text") as file:
        assert file.read() == "two\n"
    after_a_fork(workspaces, origin)
    without_a_folder(workspaces, origin)
    every = [each.id for each in workspaces.list()]
    workspaces.destroy(*every, force=True)
    workspaces.undo()
    assert workspaces.read_text(forks[0].id, "work/text") == "three\n"
    workspaces.destroy(*every, force=True)
    workspaces.sweep(everything=True)
    assert workspaces.repair() == []


def after_a_fork(workspaces: workstead.local.Local, origin: str) -> None:
    """A directory that the agent made before and after a fork is whole when the origin has it too."""
    desk = workspaces.create(f"overlay:{origin}", id="t/forked")
    workspaces.write_file(desk.id, "work/made/one", "1", parents=True)
    (fork,) = workspaces.fork(desk.id, new_id="t/fork")
    workspaces.write_file(desk.id, "work/made/two", "2")
    workspaces.apply(desk.id)
    assert sorted(os.listdir(f"{origin}/made")) == ["one", "two"]
    Holder(f"{workspaces.get(desk.id).path}/../../.carrel").stop()  # everything is mounted anew
    assert sorted(workspaces.list_files(desk.id, "work/made")) == ["one", "two"]
    assert list(workspaces.list_files(fork.id, "work/made")) == ["one"]
    assert not workspaces.status(desk.id)
    workspaces.undo()
    assert not os.path.exists(f"{origin}/made")
    assert sorted(workspaces.list_files(desk.id, "work/made")) == ["one", "two"]


def without_a_folder(workspaces: workstead.local.Local, origin: str) -> None:
    """What the user removes below does not hide what the agent has, from the next run on."""
    os.mkdir(f"{origin}/lib")
    with open(f"{origin}/lib/x", "w") as file:
        file.write("1")
    desk = workspaces.create(f"overlay:{origin}", id="t/parted")
    workspaces.write_file(desk.id, "work/lib/own", "mine")
    assert sorted(workspaces.list_files(desk.id, "work/lib")) == ["own", "x"]
    shutil.rmtree(f"{origin}/lib")
    assert list(workspaces.list_files(desk.id, "work/lib")) == []
    refresh(workspaces._home, desk)
    assert list(workspaces.list_files(desk.id, "work/lib")) == ["own"]


if __name__ == "__main__":
    main(sys.argv[1])

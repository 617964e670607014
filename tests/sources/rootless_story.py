"""What an ordinary user does, run as one: `rootless_story.py DIRECTORY` prints ok, or exits 77 if it cannot be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from sources.yard import Yard, as_agent, listing, mounts_in, random_tree, remove, repository, upset
from workstead import sources
from workstead.system.overlay import layers
from workstead.system.overlay.mount_daemon import Holder


def main(directory: str) -> None:
    assert os.geteuid() != 0
    yard = Yard(f"{directory}/yard")
    able = {name: (ok, reason) for name, ok, reason in layers.probe(yard.workspaces)}
    if not able["rootless-overlay"][0]:
        print(able["rootless-overlay"][1])
        sys.exit(77)
    try:
        tell(yard)
    finally:
        yard.close()
    assert mounts_in(directory) == []
    remove(yard.directory)
    print("ok")


def tell(yard: Yard) -> None:
    origin = yard.folder()
    random_tree(origin, 11)
    repository(origin)
    with open(f"{origin}/.awignore", "w") as file:
        file.write("src\n")
    before = listing(origin)
    desk = yard.create(f"overlay:{origin}")
    assert desk.filled.mechanism == "rootless-overlay", desk.filled
    # The directory in the open is empty; the files are in the holder's namespace.
    assert os.listdir(f"{desk.place.root}/work") == []
    skip = (".git/config", "src")
    assert listing(desk.path, skip=skip) == listing(origin, skip=skip)
    assert not os.path.exists(f"{desk.path}/src")
    assert "README" in as_agent(desk, "git ls-files && git status -s && echo new > made && git log --oneline")
    fork = yard.fork(desk)
    assert listing(fork.path) == listing(desk.path)
    as_agent(desk, "rm made && mkdir made && touch made/x")
    assert as_agent(fork, "cat made") == "new\n"
    forks = [yard.fork(fork) for _ in range(6)]
    for each in forks:
        upset(each.path, each.place.root.__hash__())
    assert listing(origin) == before

    # A holder that is killed loses the mounts, not the files; whoever comes next starts another.
    holder = Holder(yard.private)
    kept = listing(fork.path)
    os.kill(holder.process(), signal.SIGKILL)
    wait_until(lambda: holder.find_process() is None)
    for each in (desk, fork):
        sources.attach(each.filled, each.place)
    assert listing(fork.path) == kept
    assert sorted(os.listdir(f"{desk.path}/made")) == ["x"]

    # Busy: unmounted lazily, and said so.
    process = subprocess.Popen(["sleep", "60"], cwd=desk.path)
    try:
        assert sources.detach(desk.filled, desk.place) is False
    finally:
        process.kill()
        process.wait()
    sources.attach(desk.filled, desk.place)

    # A clone borrows its objects from the cache and is a repository like any other.
    commit = repository(yard.folder("cloned"))
    clone = yard.create(f"clone:{yard.directory}/cloned", identity=("N", "n@example.org"))
    assert clone.filled.mechanism == "rootless-overlay"
    script = "git status -s; echo x >> README; git commit -qam three; git log --format=%s; git rev-parse HEAD~1"
    assert as_agent(clone, script).split() == ["three", "two", commit] or as_agent(clone, "git log --format=%s")

    # Plain files become a layer at the first fork.
    grown = yard.create("empty")
    with open(f"{grown.path}/x", "w") as file:
        file.write("1")
    twin = yard.fork(grown)
    assert twin.filled.mechanism == "rootless-overlay"
    assert listing(twin.path) == listing(grown.path)


def wait_until(true: object, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


main(sys.argv[1])

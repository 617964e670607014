"""What the mount table inside a sandbox says about the host.

It cannot be hidden whole: `df`, `findmnt` and language runtimes read it. The layers of an overlay are mounted from
detached mounts, so that their options show no path. The root of a bind mount is its path on the file system, always:
of the workspace that is what `.aw/context.json` says too, and other mounts appear at their own path anyway.
"""

from __future__ import annotations

import json

import pytest

from people import Person

TABLES = "cat /proc/self/mountinfo /proc/self/mounts /proc/self/mountstats"
PLAIN = """
mkdir {0}/u {0}/w {0}/m
mount -t overlay overlay -o lowerdir={1},upperdir={0}/u,workdir={0}/w,userxattr {0}/m
grep overlay /proc/self/mountinfo
"""


@pytest.mark.parametrize("kind", ["empty", "overlay", "fork"])
def test_the_mount_table_shows_no_path_of_a_layer(person: Person, kind: str) -> None:
    project = person.folder("project", {"f": "from the project\n"})
    twin = person.folder("twin")
    plain = person.sh(f"unshare -rm sh -ec '{PLAIN.format(twin, project)}'")
    assert f"lowerdir={project}" in plain  # as it is by default

    source = ("--source", f"overlay:{project}") if kind != "empty" else ()
    person.aw_ok("create", "t/a", *source)
    if kind == "fork":
        person.aw_ok("run", "t/a", "--", "sh", "-c", "echo more > more")
        person.aw_ok("fork", "t/a", "--as", "t/b")
    name = "t/b" if kind == "fork" else "t/a"
    table = person.aw_ok("run", name, "--", "sh", "-c", TABLES)
    assert ".carrel" not in table
    assert str(project) not in table
    told = json.loads(person.aw_ok("run", name, "--", "cat", "../.aw/context.json"))["workspace_path"]
    shown = {word for line in table.splitlines() for word in line.split() if str(person.directory) in word}
    assert shown == {
        told,
        *(f"{told}/{part}" for part in (".aw", "output", "tmp", "work") if f"{told}/{part}" in shown),
    }
    assert "/mnt/workspace" in person.aw_ok("run", name, "--", "sh", "-c", "df . && findmnt -T . && findmnt -l")

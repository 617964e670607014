"""Repositories that are small to fetch and large to have, and URLs that hold a password."""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path

import pytest

from people import Person
from workstead.errors import InvalidSource
from workstead.model.source import parse

GIT = "git -c init.defaultBranch=main -c user.name=t -c user.email=t@example.com -c safe.directory='*'"


def write_object(objects: Path, kind: str, content: bytes) -> bytes:
    """Write a loose object as git would, and return its id."""
    data = f"{kind} {len(content)}\0".encode() + content
    digest = hashlib.sha1(data, usedforsecurity=False)
    path = objects / digest.hexdigest()[:2] / digest.hexdigest()[2:]
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        path.write_bytes(zlib.compress(data))
    return digest.digest()


def bomb(person: Person, *, levels: int, width: int, leaf: bytes | None) -> Path:
    """A repository whose tree has `width ** levels` names below it, each of them `leaf` or an empty directory."""
    folder = person.folder("bomb")
    person.sh(f"{GIT} init -q --bare .", cwd=folder)
    objects = folder / "objects"
    mode, found = b"40000", write_object(objects, "tree", b"")
    if leaf is not None:
        mode, found = b"100644", write_object(objects, "blob", leaf)
    for _ in range(levels):
        names = sorted(b"%03d" % number for number in range(width))
        found = write_object(objects, "tree", b"".join(mode + b" " + name + b"\0" + found for name in names))
        mode = b"40000"
    who = b"t <t@example.com> 1700000000 +0000"
    text = b"tree %s\nauthor %s\ncommitter %s\n\nbomb\n" % (found.hex().encode(), who, who)
    (folder / "refs/heads/main").write_text(write_object(objects, "commit", text).hex() + "\n")
    person.own(folder)
    return folder


def files_in_cache(person: Person) -> list[str]:
    """Every file below the cache that is not one of git's own small ones."""
    found = []
    for directory, _, names in os.walk(person.home / "cache"):
        found += [name for name in names if ("checkouts" in directory and "/new" in directory) or "tmp_" in name]
    return found


def refused(person: Person, source: str, limit: str, **settings: str) -> None:
    """The clone is refused by the limit of this name, as JSON too, and leaves nothing in the cache."""
    error = person.aw_json("create", "--source", source, "--id", "t/a", timeout=120, **settings)["error"]
    assert error["code"] == "quota_exceeded", error
    assert error["details"]["limit"] == limit
    assert not files_in_cache(person)


@pytest.mark.parametrize("leaf", [b"x", None], ids=["files", "directories"])
@pytest.mark.parametrize("kind", ["clone", "worktree"])
def test_a_tree_of_ten_million_names_is_refused(person: Person, leaf: bytes | None, kind: str) -> None:
    folder = bomb(person, levels=7, width=10, leaf=leaf)
    listing = f"{GIT} ls-tree -r -t --name-only main | head -n 2000000 | wc -l"
    assert int(person.sh(listing, cwd=folder)) == 2_000_000  # the twin: git goes on and on
    refused(person, f"{kind}:{folder}", "git.max_files")


def test_one_object_under_many_names_counts_as_often(person: Person) -> None:
    folder = bomb(person, levels=2, width=100, leaf=bytes(4 << 20))  # 39 GB in a few kilobytes
    assert int(person.sh("du -sk . | cut -f1", cwd=folder)) < 1000
    refused(person, f"clone:{folder}", "git.max_mb")


def test_a_file_too_large_for_memory_is_refused(person: Person) -> None:
    folder = bomb(person, levels=1, width=3, leaf=bytes(8 << 20))
    refused(person, f"clone:{folder}", "git.max_mb", AW_GIT__MAX_MB="20")
    person.aw_ok("create", "--source", f"clone:{folder}", "--id", "t/b", AW_GIT__MAX_MB="25")


def test_more_than_the_limit_is_not_fetched(person: Person) -> None:
    folder = person.folder("large")
    person.sh(f"{GIT} init -q; head -c 6000000 /dev/urandom > f; {GIT} add f; {GIT} commit -qm one", cwd=folder)
    refused(person, f"clone:{folder}", "git.max_mb", AW_GIT__MAX_MB="3")
    assert int(person.sh(f"du -sk {person.home}/cache | cut -f1")) < 1000
    person.aw_ok("create", "--source", f"clone:{folder}", "--id", "t/b", AW_GIT__MAX_MB="10")
    person.sh(f"head -c 6000000 /dev/urandom > g; {GIT} add g; {GIT} commit -qm two", cwd=folder)
    error = person.aw_json("create", "--source", f"clone:{folder}", "--id", "t/c", AW_GIT__MAX_MB="10")["error"]
    assert error["code"] == "quota_exceeded"  # what was fetched before counts
    assert int(person.sh(f"du -sk {person.home}/cache/mirrors | cut -f1")) < 8000


def test_a_tree_of_many_levels_is_written_or_refused(person: Person) -> None:
    folder = bomb(person, levels=800, width=1, leaf=b"x")
    person.aw_ok("create", "--source", f"clone:{folder}", "--id", "t/a")
    person.sh("rm -rf bomb")
    folder = bomb(person, levels=1500, width=1, leaf=b"x")
    done = person.aw("create", "--source", f"clone:{folder}", "--id", "t/b")
    assert done.returncode == 8, done.stderr
    assert not files_in_cache(person)


# -- passwords ---------------------------------------------------------------------------------------------------------

SECRET = "hunter2secret"
WITH_PASSWORD = [
    f"https://u:{SECRET}@example.com/x.git",
    f"clone:https://u:{SECRET}@example.com/x.git#main",
    f"https://{SECRET}@example.com/x.git",
    f"ssh://u:{SECRET}@example.com/x.git",
    f"https://u:a/{SECRET}@example.com/x.git",
    f"https://u:{SECRET}/b@example.com/x.git",
    f"https://u:a#{SECRET}@example.com/x.git",
    f"https://u:{SECRET}#b@example.com/x.git",
    f"https://u:{SECRET}@example.com/x.git#",
    f"HTTPS://u:{SECRET}@example.com/x.git",
    f"gopher://u:{SECRET}@example.com/x.git",
    f"u:{SECRET}@example.com:x.git",
    f"clone:u:p@{SECRET}@example.com:x.git",
]


@pytest.mark.parametrize("spec", WITH_PASSWORD)
def test_no_part_of_a_password_is_in_the_error(spec: str) -> None:
    with pytest.raises(InvalidSource) as error:
        parse(spec)
    assert SECRET not in f"{error.value.message} {error.value.hint} {error.value.details}"


def test_a_password_is_kept_nowhere(person: Person) -> None:
    for number, spec in enumerate(WITH_PASSWORD):
        for more in ([], ["--lazy"]):
            done = person.aw("create", "--source", spec, "--id", f"t/a{number}", *more)
            assert done.returncode == 2
            assert SECRET not in done.stdout + done.stderr
    script = (
        f"import workstead\nw = workstead.open({str(person.home)!r})\n"
        "try: w.accept_call('create', 't/a', key='k', body='b', arguments={'source': SPEC})\n"
        "except workstead.errors.InvalidSource: print('refused')\n"
    )
    for spec in WITH_PASSWORD:
        assert person.python(script.replace("SPEC", repr(spec))) == "refused\n"
    assert SECRET not in person.aw_ok("events")
    kept = [Path(directory) / name for directory, _, names in os.walk(person.home) for name in names]
    assert kept
    assert not [path for path in kept if path.is_file() and SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    "spec",
    [
        "git@github.com:a/b.git",
        "ssh://git@host:22/x",
        "https://host:8443/@scope/x@1.git",
        "https://[::1]:8443/a@b",
        "file:///a:b@c/d",
        "./a:b@c",
        "fork:t/a@s",
        "overlay:/a@b:c",
        "clone:/srv/a:b@c.git",
    ],
)
def test_what_only_looks_like_a_password_is_a_source(spec: str) -> None:
    assert parse(spec).location

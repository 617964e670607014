"""How sources are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workstead.errors import InvalidSource, NullByteInPath
from workstead.model.source import Source, branch_name, is_commit, is_local, parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("empty", Source(kind="empty")),
        (".", Source(kind="overlay", location=".")),
        ("/a/b", Source(kind="overlay", location="/a/b")),
        ("./a:b", Source(kind="overlay", location="./a:b")),
        ("overlay:x y", Source(kind="overlay", location="x y")),
        ("folder:/x", Source(kind="folder", location="/x")),
        ("worktree:../r", Source(kind="worktree", location="../r")),
        ("template:web-1.2", Source(kind="template", location="web-1.2")),
        ("archive:a.tar", Source(kind="archive", location="a.tar")),
        ("https://h/p.git", Source(kind="clone", location="https://h/p.git")),
        ("https://h/p#feature/x", Source(kind="clone", location="https://h/p", branch="feature/x")),
        ("clone:/r#main", Source(kind="clone", location="/r", branch="main")),
        (f"clone:https://h/p#{COMMIT}", Source(kind="clone", location="https://h/p", commit=COMMIT)),
        ("git@h.org:a/b.git", Source(kind="clone", location="git@h.org:a/b.git")),
        ("file:///r", Source(kind="clone", location="file:///r")),
        ("fork:t/a", Source(kind="fork", location="t/a")),
        ("fork:t", Source(kind="fork", location="t")),
        ("fork:t/a@s1", Source(kind="fork", location="t/a", snapshot="s1")),
        ("fork:me@work/a@s1", Source(kind="fork", location="me@work/a", snapshot="s1")),
    ],
)
def test_every_spelling_is_read_and_written_back(text: str, source: Source) -> None:
    assert parse(text) == source
    assert parse(source.spec()) == source


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "empty:",
        "empty:x",
        "clone:",
        "clone:#main",
        "clone:https://h/p#",
        "magic:x",
        "fork:/a",
        "fork:t/",
        "fork:t/a@",
        "template:../x",
        "template:.x",
        "template:a/b",
        "clone:/r#-x",
        "clone:/r#a..b",
        "clone:/r#a b",
        "clone:/r#x.lock",
        "/\udcff",
    ],
)
def test_nonsense_is_an_invalid_source(text: str) -> None:
    with pytest.raises(InvalidSource):
        parse(text)


def test_a_null_byte_has_its_own_error() -> None:
    with pytest.raises(NullByteInPath):
        parse("overlay:/a\0b")


def test_relative_paths_are_joined_and_others_left_alone() -> None:
    assert parse("overlay:x").absolute("/d").location == "/d/x"
    assert parse("clone:./r").absolute("/d").location == "/d/./r"
    for text in ("clone:https://h/p", "file:///r", "git@h:p", "template:x", "fork:t/a", "overlay:/abs"):
        assert parse(text).absolute("/d") == parse(text)


def test_what_is_on_this_disk() -> None:
    assert is_local("file:///x")
    assert is_local("./x:y")
    assert not is_local("https://x/y")
    assert not is_local("git@h:p")


@pytest.mark.parametrize("name", ["main", "feature/x-1", "ünï", "a.b", "v1.0", "@x"])
def test_branch_names_that_git_takes(name: str) -> None:
    assert branch_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-x",
        "a..b",
        "a~",
        "a^",
        "a:b",
        "a?",
        "a*",
        "a[",
        "a\\b",
        "/a",
        "a/",
        "a//b",
        ".a",
        "a/.b",
        "a.lock",
        "a.lock/b",
        "a.",
        "@",
        "a@{1}",
        "a\n",
        "a b",
        "x" * 300,
        "HEAD",
        "a\0b",
        "main\u202egnp",
        "a\u2066b",
        "a\x9bb",
        "a\ud800b",
    ],
)
def test_branch_names_that_git_or_a_terminal_takes_for_something_else(name: str) -> None:
    with pytest.raises(InvalidSource):
        branch_name(name)


def test_a_commit_is_a_full_lower_case_id() -> None:
    assert is_commit(COMMIT)
    assert not is_commit(COMMIT.upper())
    assert not is_commit(COMMIT[:39])


@given(st.text(max_size=60))
def test_any_text_is_a_source_or_a_clear_error(text: str) -> None:
    try:
        source = parse(text)
    except (InvalidSource, NullByteInPath):
        return
    assert parse(source.spec()) == source

"""Old mount names in prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workstead.model.prompt import adapt_prompt

REPLACED = {
    "Work in /mnt/okcomputer/ now": "Work in /mnt/desk-7/ now",
    "/mnt/workspace": "/mnt/desk-7",
    "save to /mnt/workspace/output/a.txt.": "save to /mnt/desk-7/output/a.txt.",
    "(/mnt/workspace)": "(/mnt/desk-7)",
    "`/mnt/okcomputer`": "`/mnt/desk-7`",
    "in /mnt/workspace.": "in /mnt/desk-7.",
    "in /mnt/workspace...": "in /mnt/desk-7...",
    "in /mnt/workspace, then": "in /mnt/desk-7, then",
    '"/mnt/workspace/"': '"/mnt/desk-7/"',
    "file:///mnt/workspace/x": "file:///mnt/desk-7/x",
    "PATH=/mnt/workspace/bin:/mnt/okcomputer/bin": "PATH=/mnt/desk-7/bin:/mnt/desk-7/bin",
    "/mnt/workspace\n/mnt/okcomputer/": "/mnt/desk-7\n/mnt/desk-7/",
    "/mnt/workspace//x": "/mnt/desk-7//x",
    "cd /mnt/workspace;ls": "cd /mnt/desk-7;ls",
}
KEPT = [
    "/mnt/workspaces-x",
    "/mnt/workspace-old/x",
    "/mnt/workspace.bak",
    "/mnt/workspace_2",
    "/mnt/workspaceé",
    "/a/mnt/workspace",
    "x/mnt/workspace/y",
    "https://mnt/workspace",
    "//mnt/workspace",
    "../mnt/workspace",
    "~/mnt/workspace",
    "mnt/workspace",
    "/MNT/WORKSPACE",
    "/mnt",
    "",
]


@pytest.mark.parametrize(("text", "adapted"), REPLACED.items())
def test_a_mount_is_replaced_where_it_is_a_whole_path_or_begins_one(text: str, adapted: str) -> None:
    assert adapt_prompt(text, mount="/mnt/desk-7/") == adapted


@pytest.mark.parametrize("text", KEPT)
def test_other_paths_that_hold_the_name_stay(text: str) -> None:
    assert adapt_prompt(text, mount="/mnt/desk-7") == text


def test_the_longest_name_wins_and_what_was_put_in_is_not_replaced_again() -> None:
    mounts = ("/mnt", "/mnt/old", "/new")
    assert (
        adapt_prompt("/mnt/old/x /mnt/y /new", old_mounts=mounts, mount="/new/mnt") == "/new/mnt/x /new/mnt/y /new/mnt"
    )


def test_a_mount_at_the_root_gives_paths_at_the_root() -> None:
    assert adapt_prompt("/mnt/workspace/a /mnt/workspace", mount="/") == "/a /"


def test_names_with_signs_of_expressions_are_taken_as_they_are() -> None:
    assert adapt_prompt("/mnt/a.b+c/x /mnt/aXb", old_mounts=["/mnt/a.b+c"], mount=r"/m\1") == r"/m\1/x /mnt/aXb"
    assert adapt_prompt("/mnt/x", old_mounts=[], mount="/m") == "/mnt/x"


@given(st.text(alphabet="/mntworkspace.- x", max_size=40))
def test_adapting_twice_changes_nothing_more(text: str) -> None:
    once = adapt_prompt(text, mount="/desk")
    assert adapt_prompt(once, mount="/desk") == once

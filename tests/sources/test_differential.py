"""What git or a template gives is exactly what was put in, for trees of every kind; overlays have a test of theirs."""

from __future__ import annotations

import os

import pytest

from needs import need_program, need_root
from sources.yard import Desk, Yard, listing, random_tree, sh, upset, yard_fixture
from workstead.sources.template import mark_made

yard = yard_fixture


@pytest.mark.parametrize("seed", range(30))
def test_clones_work_trees_and_templates_show_what_there_was_and_keep_everybody_apart(yard: Yard, seed: int) -> None:
    need_root()
    need_program("git")
    origin, template = yard.folder(), f"{yard.templates}/tree"
    random_tree(origin, seed)
    sh("find . -name .git -prune -exec rm -rf {} +; find . -type p -delete", origin)
    os.makedirs(template)
    sh(f"cp -a . {template}", origin)
    if seed % 2:  # made by us and so shared; else it was put there by hand
        mark_made(yard.cache, "tree", template, [])
    sh("git init -q -b main . && git add -A && git commit -qm all", origin)
    # What git keeps of a tree: no empty directories, no hard links, one bit of the mode.
    plain = f"{yard.directory}/plain"
    sh(f"git clone -q . {plain}", origin)
    shown = {
        "clone": listing(plain, skip=(".git",), times=False),
        "worktree": listing(plain, skip=(".git",), times=False),
        "template": listing(template, times=True),
    }
    specs = {"clone": f"clone:{origin}", "worktree": f"worktree:{origin}", "template": "template:tree"}

    def seen(desk: Desk, kind: str) -> dict[bytes, tuple[object, ...]]:
        return listing(desk.path, skip=(".git",) if kind != "template" else (), times=kind == "template")

    pairs = {kind: (yard.create(spec), yard.create(spec)) for kind, spec in specs.items()}
    before = [listing(origin), listing(template), listing(f"{yard.cache}/checkouts")]
    for kind, (first, second) in pairs.items():
        assert seen(first, kind) == seen(second, kind) == shown[kind], kind
        upset(first.path, seed)
    for kind, (_, second) in pairs.items():
        assert seen(second, kind) == shown[kind], kind
    assert [listing(origin), listing(template), listing(f"{yard.cache}/checkouts")] == before

"""A worktree that the parent lists, in which the agent commits, and whose parent it cannot write."""

from __future__ import annotations

from pathlib import Path

from needs import need_program, need_root
from sources.yard import sh
from workstead.local import Local


def test_an_agent_commits_in_its_worktree_and_cannot_touch_the_parent(workspaces: Local, tmp_path: Path) -> None:
    need_root()
    need_program("bwrap")
    parent = tmp_path / "parent"
    parent.mkdir()
    (parent / "a").write_text("a\n")
    sh("git init -q -b main . && git add . && git commit -qm first", str(parent))
    before = (parent / ".git" / "refs" / "heads" / "main").read_text()
    desk = workspaces.create(f"worktree:{parent}", id="t/w")
    script = f"""
        echo b > b && git add b && git -c user.name=x -c user.email=x@y commit -qm second
        git log --oneline | wc -l; git status --short
        echo evil > {parent}/.git/hooks/post-commit || echo refused; echo evil > {parent}/.git/config || echo refused
    """
    run = workspaces.wait(workspaces.run(desk.id, ["sh", "-c", script]).id)
    said = b"".join(data for stream, _, data in workspaces.output(run.id) if stream == 1).decode().split()
    assert said == ["2", "refused", "refused"], b"".join(data for _, _, data in workspaces.output(run.id))
    assert str(Path(desk.path, "work")) in sh("git worktree list", str(parent))
    assert (parent / ".git" / "refs" / "heads" / "main").read_text() == before
    assert not (parent / "b").exists()

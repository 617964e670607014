"""Let several agents work on one repository at the same time, check each result, and apply the best one."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import workstead

# Stands for an agent: attempt 1 does nothing useful, attempt 2 fixes the bug, attempt 3 fixes it and adds noise.
AGENT = """
case {n} in
    1) echo 'I looked at it' > notes.txt ;;
    2) sed -i 's/a - b/a + b/' calc.py ;;
    3) sed -i 's/a - b/a + b/' calc.py; seq 100 > noise.txt ;;
esac
"""


def make_repository(path: Path) -> None:
    """Make a repository with a bug and a test that shows it."""
    path.mkdir()
    (path / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (path / "check.py").write_text("from calc import add\nassert add(2, 3) == 5\n")
    git = ["git", "-C", str(path), "-c", "user.name=example", "-c", "user.email=example@example.org"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "a bug"]):
        subprocess.run([*git, *words], check=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, workstead.open() as workspaces:
        repository = Path(folder, "repository")
        make_repository(repository)
        race = workspaces.race(
            f"overlay:{repository}",
            ["sh", "-c", AGENT],
            count=3,
            check="python3 -B check.py",
            at_once=2,
        )
        for lane in race.lanes:
            print(f"{lane.rank}. {lane.workspace_id}: check {lane.check_state}, {lane.files} files changed")
        if race.best is None:
            raise SystemExit("no attempt passed the check")
        applied = workspaces.apply(race.best.workspace_id)
        print(f"applied {race.best.workspace_id}: {', '.join(applied.written)}")
        subprocess.run(["git", "-C", str(repository), "--no-pager", "diff", "--stat"], check=True)
        workspaces.destroy(*(lane.workspace_id for lane in race.lanes), force=True)


if __name__ == "__main__":
    main()

"""Every verb that changes something: what has to be there before it, the verb, and what is so once it was done.

Claims are spelled as in `powercut/workload.py`, and looked at by the same oracle.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from powercut.workload import Claims, branch, join, origin, state, work
from workstead.errors import ApprovalRequired
from workstead.local import Local
from workstead.model.edit import Edit

FILES = {"a.txt": "a\n", "sub/b.txt": "b\n", "gone.txt": "gone\n"}
CHANGED = {"a.txt": "changed\n", "n/new.txt": "new\n", "gone.txt": None}
Do = Callable[[Local], object]


class Act(NamedTuple):
    """A verb, and what it makes true."""

    act: Do
    new: Claims
    before: tuple[Do, Claims] | None = None
    atomic: bool = True  # all of its claims are old, or all are new
    done_before: str = ""  # the error of a second try if the first failed after its effect


class Scene:
    """Where the home and the user's folders are, and the workspaces that every act finds."""

    def __init__(self, place: str) -> None:
        self.home = f"{place}/home"
        self.origins = f"{place}/origins"
        self.folder = f"{self.origins}/folder"
        self.repository = f"{self.origins}/repository"
        self.archived = f"{self.origins}/kept.tar"

    def make_origins(self) -> None:
        for top in (self.folder, self.repository):
            for path, text in FILES.items():
                os.makedirs(os.path.dirname(f"{top}/{path}"), exist_ok=True)
                with open(f"{top}/{path}", "w") as file:
                    file.write(text)
        git = ["git", "-C", self.repository, "-c", "user.name=n", "-c", "user.email=e@x"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "m"]):
            subprocess.run([*git, *words], check=True)

    def prepare(self, it: Local) -> None:
        it.create(id="t/plain")
        it.write_file("t/plain", "work/a.txt", "a\n")
        it.write_file("t/plain", "work/d/b.txt", "b\n", parents=True)
        it.snapshot("t/plain", label="good")
        it.create(id="t/gone")
        it.write_file("t/gone", "work/a.txt", "gone\n")
        for id, top in (("t/view", self.folder), ("t/git", self.repository)):
            it.create(f"overlay:{top}", id=id)
            it.write_file(id, "work/a.txt", "changed\n")
            it.write_file(id, "work/n/new.txt", "new\n", parents=True)
            it.delete_file(id, "work/gone.txt")
        it.add_template("kept", folder=self.folder)
        it.archive("t/plain", self.archived)
        with suppress(ApprovalRequired):
            it.acting_as("bot", agent_of="t/plain").write_file("t/plain", "work/a.txt", "wanted\n")
        it.destroy("t/gone", force=True)

    def holds(self) -> Claims:
        """What is so before each act."""
        return join(
            state("t/plain", "ready"),
            work("t/plain", "work/a.txt", "a\n"),
            work("t/plain", "work/d/b.txt", "b\n"),
            {"snapshot t/plain good": {"work/a.txt": "a\n", "work/d/b.txt": "b\n"}},
            state("t/gone", "trash"),
            state("t/view", "ready"),
            work("t/view", "work/sub/b.txt", FILES["sub/b.txt"]),
            state("t/git", "ready"),
            *(work(id, f"work/{path}", text) for id in ("t/view", "t/git") for path, text in CHANGED.items()),
            *(origin(f"{top}/{path}", text) for top in (self.folder, self.repository) for path, text in FILES.items()),
            origin(f"{self.folder}/n/new.txt", None),
            branch(self.repository, "agent", "a.txt", None),
            {"template kept": {f"work/{path}": text for path, text in FILES.items()}},
            {f"archive {self.archived}": True},
        )

    def acts(self) -> dict[str, Act]:
        """By name."""
        begun = {f"work/{path}": text for path, text in FILES.items()}
        applied = join(*(origin(f"{self.folder}/{path}", text) for path, text in CHANGED.items()))
        put_back = join(*(origin(f"{self.folder}/{path}", FILES.get(path)) for path in CHANGED))
        on_branch = join(*(branch(self.repository, "agent", path, text) for path, text in CHANGED.items()))
        no_branch = dict.fromkeys(on_branch)
        a, small, big = "work/a.txt", "small\n", "0123456789\n" * 20_000
        old = work("t/plain", a, "a\n")
        trashed = join(state("t/plain", "trash"), work("t/plain", a, None), work("t/plain", "work/d/b.txt", None))
        back = join(state("t/plain", "ready"), old, work("t/plain", "work/d/b.txt", "b\n"))
        gone_back = join(state("t/gone", "ready"), work("t/gone", a, "gone\n"))

        def made(id: str, files: dict[str, str]) -> Claims:
            return join(state(id, "ready"), *(work(id, path, text) for path, text in files.items()))

        plain = {a: "a\n", "work/d/b.txt": "b\n"}
        put = lambda it: it.write_file("t/plain", a, small, keep=True)  # noqa: E731
        return {
            "put": Act(
                lambda it: it.write_file("t/plain", "work/p/n.txt", big, parents=True),
                work("t/plain", "work/p/n.txt", big),
            ),
            "put over": Act(put, work("t/plain", a, small)),
            "undo put": Act(lambda it: it.undo(), old, (put, work("t/plain", a, small))),
            "append": Act(lambda it: it.write_file("t/plain", a, small, append=True), work("t/plain", a, "a\nsmall\n")),
            "edit": Act(lambda it: it.edit_file("t/plain", a, [Edit(old="a", new="e")]), work("t/plain", a, "e\n")),
            "put into a view": Act(
                lambda it: it.write_file("t/view", "work/sub/b.txt", small), work("t/view", "work/sub/b.txt", small)
            ),
            "mkdir": Act(
                lambda it: it.make_directory("t/plain", "work/x/y", parents=True), {"dir t/plain work/x/y": True}
            ),
            "mv": Act(
                lambda it: it.move_file("t/plain", a, "work/d/m.txt"),
                join(work("t/plain", a, None), work("t/plain", "work/d/m.txt", "a\n")),
            ),
            "mv over": Act(
                lambda it: it.move_file("t/plain", a, "work/d/b.txt", replace=True),
                join(work("t/plain", a, None), work("t/plain", "work/d/b.txt", "a\n")),
            ),
            "rm": Act(
                lambda it: it.delete_file("t/plain", "work/d", recursive=True), work("t/plain", "work/d/b.txt", None)
            ),
            "undo rm": Act(
                lambda it: it.undo(),
                work("t/plain", "work/d/b.txt", "b\n"),
                (lambda it: it.delete_file("t/plain", "work/d", recursive=True), work("t/plain", "work/d/b.txt", None)),
            ),
            "create": Act(lambda it: it.create(id="t/n", config={"claude_md": "x"}), made("t/n", {})),
            "create from a folder": Act(lambda it: it.create(f"folder:{self.folder}", id="t/n"), made("t/n", begun)),
            "create a view": Act(lambda it: it.create(f"overlay:{self.folder}", id="t/n"), made("t/n", begun)),
            "create a clone": Act(lambda it: it.create(f"clone:{self.repository}", id="t/n"), made("t/n", begun)),
            "create a worktree": Act(lambda it: it.create(f"worktree:{self.repository}", id="t/n"), made("t/n", begun)),
            "create from a template": Act(lambda it: it.create("template:kept", id="t/n"), made("t/n", begun)),
            "create from an archive": Act(
                lambda it: it.create(f"archive:{self.archived}", id="t/n"), made("t/n", plain)
            ),
            "create with a size": Act(lambda it: it.create(id="t/n", config={"max_size_mb": 16}), made("t/n", {})),
            "fork": Act(lambda it: it.fork("t/plain", new_id="t/n"), made("t/n", plain)),
            "fork of a view": Act(
                lambda it: it.fork("t/view", new_id="t/n"), made("t/n", {a: "changed\n", "work/n/new.txt": "new\n"})
            ),
            "snapshot": Act(
                lambda it: it.snapshot("t/plain", label="mine"),
                {"snapshot t/plain mine": {a: small}},
                (put, work("t/plain", a, small)),
            ),
            "restore": Act(lambda it: it.restore("t/plain", "good"), old, (put, work("t/plain", a, small))),
            "restore a path": Act(lambda it: it.restore("t/plain", "good", [a]), old, (put, work("t/plain", a, small))),
            "undo restore": Act(
                lambda it: it.undo(),
                work("t/plain", a, small),
                (lambda it: (put(it), it.restore("t/plain", "good")), old),
            ),
            "apply": Act(lambda it: it.apply("t/view"), applied),
            "apply a path": Act(lambda it: it.apply("t/view", ["a.txt"]), origin(f"{self.folder}/a.txt", "changed\n")),
            "undo apply": Act(lambda it: it.undo(), put_back, (lambda it: it.apply("t/view"), applied)),
            "apply to a branch": Act(lambda it: it.apply("t/git", to="branch:agent", message="m"), on_branch),
            "undo apply to a branch": Act(
                lambda it: it.undo(),
                no_branch,
                (lambda it: it.apply("t/git", to="branch:agent", message="m"), on_branch),
            ),
            "apply to a patch": Act(lambda it: it.apply("t/git", to=f"patch:{self.origins}/p.patch"), {}),
            "destroy": Act(lambda it: it.destroy("t/plain", force=True), trashed),
            "undo destroy": Act(lambda it: it.undo(), back, (lambda it: it.destroy("t/plain", force=True), trashed)),
            "destroy a view": Act(
                lambda it: it.destroy("t/view", force=True),
                join(
                    state("t/view", "trash"),
                    *(work("t/view", f"work/{each}", None) for each in (*CHANGED, "sub/b.txt")),
                ),
            ),
            "trash restore": Act(lambda it: it.restore_trashed("t/gone"), gone_back),
            "sweep": Act(lambda it: it.sweep(everything=True), state("t/gone", None)),
            "archive": Act(
                lambda it: it.archive("t/view", f"{self.origins}/n.tar"),
                {f"archive {self.origins}/n.tar": True},
                done_before="file_exists",
            ),
            "template add": Act(lambda it: it.add_template("n", folder=self.folder), {"template n": begun}),
            "template remove": Act(
                lambda it: it.remove_template("kept"), {"template kept": None}, done_before="template_not_found"
            ),
            "run": Act(lambda it: it.wait(it.run("t/plain", ["true"], sandbox="none").id), {}),
            "approve": Act(lambda it: it.approve_all("t/plain", unseen=True), {}),
            "pin": Act(lambda it: it.pin("t/plain"), {"pinned t/plain": True}),
            "policy": Act(lambda it: it.change_policy("t/plain", "trusting"), {"policy t/plain": "trusting"}),
            "mail": Act(lambda it: it.send_message("t/plain", "hello\n"), {}),
            "token": Act(lambda it: it.create_token("t/plain"), {}),
            "repair": Act(lambda it: it.repair(), {}),
        }

"""Every verb that acknowledges, once; what it promised is printed as JSON lines, for `check.py` to look at after a cut.

    python workload.py HOME ORIGINS RECORD

Each step prints what it is about to make true and, when the verb has returned, how long the recorder's record was at
that moment. What a cut before that moment leaves of the step is old or new; after it, it is new.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import workstead
from workstead.errors import ApprovalRequired
from workstead.local import Local
from workstead.model.edit import Edit
from workstead.settings import load_settings

Claims = dict[str, Any]
PARTS = ("files", "states", "sources", "git", "sized", "giving", "branches", "asking", "ends")


def work(workspace: str, path: str, content: str | None, mode: int = 0o644) -> Claims:
    """A file of a workspace has this content and mode, or is not there."""
    return {f"work {workspace} {path}": None if content is None else [content, mode]}


def origin(path: str, content: str | None) -> Claims:
    """A file of the user's has this content, or is not there."""
    return {f"origin {path}": content}


def state(workspace: str, state: str | None) -> Claims:
    """A workspace is ready, in the trash, or nowhere."""
    return {f"state {workspace}": state}


def branch(repository: str, name: str, path: str, content: str | None) -> Claims:
    """A file has this content on a branch of the user's, or is not there."""
    return {f"branch {repository} {name} {path}": content}


def join(*claims: Claims) -> Claims:
    return {key: value for each in claims for key, value in each.items()}


class Workload:
    """The steps, and where they happen."""

    def __init__(self, home: str, origins: str, record: str) -> None:
        self._home, self._origins, self._record = home, origins, record
        self.it = self.open()

    def open(self, **settings: str) -> Local:
        environment = {"HOME": os.environ["HOME"], **{f"AW_{key.upper()}": value for key, value in settings.items()}}
        loaded = load_settings(environment, "/", system_directory="/nonexistent")
        return workstead.open(self._home, settings=loaded)

    @contextmanager
    def step(self, name: str, *claims: Claims, atomic: bool = True) -> Iterator[Claims]:
        """One acknowledged operation; what is known only afterwards is added to what it gives.

        `atomic` is false for several verbs in one step.
        """
        new = join(*claims)
        print(json.dumps({"step": name, "claims": new, "atomic": atomic}), flush=True)
        yield new
        print(json.dumps({"done": name, "claims": new, "at": os.stat(self._record).st_size}), flush=True)

    def command(self, *words: str, feed: str = "") -> None:
        """`aw WORDS`, as a process of its own."""
        script = "from workstead.cli import command; command()"
        environment = {**os.environ, "AW_HOME": self._home}
        done = subprocess.run(
            [sys.executable, "-B", "-c", script, *words],
            input=feed,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def repository(self, name: str) -> str:
        """A folder of the user's under git."""
        folder = self.folder(name)
        git = ["git", "-C", folder, "-c", "user.name=n", "-c", "user.email=e@x"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "m"]):
            subprocess.run([*git, *words], check=True)
        subprocess.run(["sync", "-f", folder], check=True)
        return folder

    def folder(self, name: str) -> str:
        """A folder of the user's, on the disk for good before anybody uses it."""
        path = f"{self._origins}/{name}"
        files = {f"{path}/a.txt": "a\n", f"{path}/sub/b.txt": "b\n", f"{path}/gone.txt": "gone\n"}
        with self.step(f"folder {name}", *(origin(each, text) for each, text in files.items()), atomic=False):
            os.makedirs(f"{path}/sub")
            for each, text in files.items():
                with open(each, "w") as file:
                    file.write(text)
            subprocess.run(["sync", "-f", path], check=True)
        return path

    def files(self) -> None:
        it, path = self.it, "work/d/f.txt"
        with self.step("create empty", state("files/a", "ready")):
            it.create(id="files/a")
        with self.step("put", work("files/a", "work/new.txt", "new\n")):
            it.write_file("files/a", "work/new.txt", "new\n")
        with self.step("put into new directories", work("files/a", path, "one\n")):
            it.write_file("files/a", path, "one\n", parents=True)
        with self.step("put over", work("files/a", path, "two\n" * 5000)):
            it.write_file("files/a", path, "two\n" * 5000, keep=True)
        with self.step("undo put", work("files/a", path, "one\n")):
            it.undo()
        with self.step("append", work("files/a", path, "one\nmore\n")):
            it.write_file("files/a", path, "more\n", append=True)
        with self.step("mkdir", {"dir files/a work/x/y": True}):
            it.make_directory("files/a", "work/x/y", parents=True)
        with self.step("mv", work("files/a", path, None), work("files/a", "work/x/moved.txt", "one\nmore\n")):
            it.move_file("files/a", path, "work/x/moved.txt")
        with self.step("undo mv", work("files/a", path, "one\nmore\n"), work("files/a", "work/x/moved.txt", None)):
            it.undo()
        with self.step("rm", work("files/a", "work/new.txt", None)):
            it.delete_file("files/a", "work/new.txt")
        with self.step("undo rm", work("files/a", "work/new.txt", "new\n")):
            it.undo()
        with self.step("rm of a directory", work("files/a", path, None)):
            it.delete_file("files/a", "work/d", recursive=True)
        with self.step("undo rm of a directory", work("files/a", path, "one\nmore\n")):
            it.undo()
        with self.step("edit", work("files/a", path, "one\nedited\n")):
            it.edit_file("files/a", path, [Edit(old="more", new="edited")])
        with self.step("put by a command", work("files/a", "work/by-command.txt", "command\n")):
            self.command("put", "files/a", "work/by-command.txt", feed="command\n")
        with self.step("undo edit by a command", work("files/a", path, "one\nmore\n")):
            self.command("undo")
        with self.step("mv over", work("files/a", path, "new\n"), work("files/a", "work/new.txt", None)):
            it.move_file("files/a", "work/new.txt", path, replace=True)
        both = [work("files/a", path, "one\nmore\n"), work("files/a", "work/new.txt", "new\n")]
        with self.step("undo mv over", *both):
            it.undo()

    def states(self) -> None:
        it, big = self.it, "0123456789\n" * 20000
        with self.step("create lazily", state("states/a", "planned")):
            it.create(id="states/a", lazy=True)
        put = [state("states/a", "ready"), work("states/a", "work/big.txt", big)]
        with self.step("put into a planned one", *put, atomic=False):
            it.write_file("states/a", "work/big.txt", big)
        top = it.get("states/a").path
        with open(f"{top}/work/by-hand.txt", "w") as file:  # as a command would write it: nobody syncs it
            file.write("by hand\n")
        os.chmod(f"{top}/work/by-hand.txt", 0o755)
        with self.step("snapshot") as claims:
            kept = it.snapshot("states/a").id
            claims[f"snapshot states/a {kept}"] = {"work/big.txt": big, "work/by-hand.txt": "by hand\n"}
        with self.step("put over what a snapshot has", work("states/a", "work/big.txt", "small\n")):
            it.write_file("states/a", "work/big.txt", "small\n")
        with self.step("restore", work("states/a", "work/big.txt", big)):
            it.restore("states/a", kept)
        with self.step("undo restore", work("states/a", "work/big.txt", "small\n")):
            it.undo()
        with self.step("restore a path", work("states/a", "work/big.txt", big)):
            it.restore("states/a", kept, ["work/big.txt"])
        with self.step("undo restore of a path", work("states/a", "work/big.txt", "small\n")):
            it.undo()
        with self.step("run") as claims:
            run = it.run("states/a", ["sh", "-c", "echo out; echo ran > ran.txt"])
            ended = it.wait(run.id)
            assert ended.state == "completed", ended
            claims[f"run {run.id}"] = ended.state
        with self.step("snapshot after a run") as claims:
            kept = it.snapshot("states/a").id
            claims[f"snapshot states/a {kept}"] = {"work/big.txt": "small\n", "work/ran.txt": "ran\n"}
        with self.step("archive") as claims:
            claims[f"archive {it.archive('states/a').path}"] = True

    def sources(self) -> None:
        it = self.it
        copies = self.open(storage_mechanism="copy")
        folder = self.folder("sources")
        begun = {"work/a.txt": "a\n", "work/sub/b.txt": "b\n"}
        begins = lambda id: join(state(id, "ready"), *(work(id, path, text) for path, text in begun.items()))  # noqa: E731
        with self.step("template add", {"template t": begun}):
            it.add_template("t", folder=folder)
        with self.step("create by overlay", begins("sources/overlay")):
            it.create(f"overlay:{folder}", id="sources/overlay")
        with self.step("create from a folder", begins("sources/folder")):
            it.create(f"folder:{folder}", id="sources/folder")
        with self.step("create by a command", begins("sources/command")):
            self.command("create", "sources/command", "--source", f"overlay:{folder}")
        with self.step("put over a view", work("sources/overlay", "work/a.txt", "changed\n")):
            it.write_file("sources/overlay", "work/a.txt", "changed\n")
        with self.step("create by copy", begins("sources/copy")):
            copies.create(f"overlay:{folder}", id="sources/copy")
        with self.step("create from a template", begins("sources/template")):
            it.create("template:t", id="sources/template")
        with self.step("fork", begins("sources/fork"), work("sources/fork", "work/a.txt", "changed\n")):
            it.fork("sources/overlay", new_id="sources/fork")
        with self.step("fork of plain files", begins("sources/fork2")):
            it.fork("sources/copy", new_id="sources/fork2")
        with self.step("put into a fork", work("sources/fork2", "work/a.txt", "fork\n")):
            it.write_file("sources/fork2", "work/a.txt", "fork\n")
        with self.step("archive a view") as claims:
            path = it.archive("sources/overlay").path
            claims[f"archive {path}"] = True
        unpacked = "sources/archive"
        with self.step("create from an archive", begins(unpacked), work(unpacked, "work/a.txt", "changed\n")):
            it.create(f"archive:{path}", id=unpacked)
        with self.step("template of a workspace", {"template w": {"work/a.txt": "fork\n"}}):
            it.add_template("w", workspace="sources/fork2")
        with self.step("template remove", {"template w": None}):
            it.remove_template("w")

    def git(self) -> None:
        folder = self.repository("repository")
        for kind in ("clone", "worktree"):
            id = f"git/{kind}"
            with self.step(f"create by {kind}", state(id, "ready"), work(id, "work/a.txt", "a\n")):
                self.it.create(f"{kind}:{folder}", id=id)
        with self.step("put into a clone", work("git/clone", "work/a.txt", "clone\n")):
            self.it.write_file("git/clone", "work/a.txt", "clone\n")
        with self.step("destroy a worktree", state("git/worktree", "trash"), work("git/worktree", "work/a.txt", None)):
            self.it.destroy("git/worktree", force=True)
        with self.step(
            "undo destroy of a worktree", state("git/worktree", "ready"), work("git/worktree", "work/a.txt", "a\n")
        ):
            self.it.undo()

    def sized(self) -> None:
        sized = self.open(storage_quota="image") if os.geteuid() == 0 else self.it
        with self.step("create with a size", state("sized/a", "ready")):
            sized.create(id="sized/a", config={"max_size_mb": 32})
        with self.step("put into a sized one", work("sized/a", "work/a.txt", "sized\n")):
            sized.write_file("sized/a", "work/a.txt", "sized\n")
        with self.step("snapshot of a sized one") as claims:
            claims[f"snapshot sized/a {sized.snapshot('sized/a').id}"] = {"work/a.txt": "sized\n"}
        with self.step("fork of a sized one", state("sized/b", "ready"), work("sized/b", "work/a.txt", "sized\n")):
            sized.fork("sized/a", new_id="sized/b")
        with self.step("destroy a sized one", state("sized/a", "trash"), work("sized/a", "work/a.txt", None)):
            sized.destroy("sized/a", force=True)
        with self.step(
            "undo destroy of a sized one", state("sized/a", "ready"), work("sized/a", "work/a.txt", "sized\n")
        ):
            sized.undo()

    def giving(self) -> None:
        it, folder = self.it, self.folder("giving")
        with self.step("create what is applied", state("giving/a", "ready"), work("giving/a", "work/a.txt", "a\n")):
            it.create(f"overlay:{folder}", id="giving/a")
        with self.step("change what is applied", work("giving/a", "work/a.txt", "applied\n"), atomic=False):
            it.write_file("giving/a", "work/a.txt", "applied\n")
            it.write_file("giving/a", "work/n/new.txt", "new\n", parents=True)
            it.delete_file("giving/a", "work/gone.txt")
        after = [origin(f"{folder}/a.txt", "applied\n"), origin(f"{folder}/n/new.txt", "new\n")]
        with self.step("apply", *after, origin(f"{folder}/gone.txt", None)):
            it.apply("giving/a")
        before = [origin(f"{folder}/a.txt", "a\n"), origin(f"{folder}/n/new.txt", None)]
        with self.step("undo apply", *before, origin(f"{folder}/gone.txt", "gone\n")):
            it.undo()
        with self.step("apply a path", origin(f"{folder}/a.txt", "applied\n")):
            it.apply("giving/a", ["a.txt"])
        with self.step("apply the rest by a command", *after, origin(f"{folder}/gone.txt", None)):
            self.command("apply", "giving/a")
        with self.step("undo it by a command", *before[1:], origin(f"{folder}/gone.txt", "gone\n")):
            self.command("undo")

    def branches(self) -> None:
        it, folder = self.it, self.repository("branches")
        begun = work("branches/a", "work/a.txt", "a\n")
        with self.step("create what goes to a branch", state("branches/a", "ready"), begun):
            it.create(f"overlay:{folder}", id="branches/a")
        with self.step("change what goes to a branch", work("branches/a", "work/a.txt", "branch\n"), atomic=False):
            it.write_file("branches/a", "work/a.txt", "branch\n")
            it.write_file("branches/a", "work/more.txt", "more\n")
        changed = [branch(folder, "agent", "a.txt", "branch\n"), branch(folder, "agent", "more.txt", "more\n")]
        with self.step("apply to a branch", *changed):
            it.apply("branches/a", to="branch:agent", message="one")
        with self.step("undo apply to a branch", *(dict.fromkeys(each) for each in changed)):
            it.undo()
        patch = f"{self._origins}/agent.patch"
        with self.step("apply to a patch") as claims:
            it.apply("branches/a", to=f"patch:{patch}")
            with open(patch) as file:
                claims |= origin(patch, file.read())

    def ends(self) -> None:
        it = self.it
        file = work("ends/a", "work/a.txt", "a\n")
        three = [state(f"ends/{name}", "ready") for name in "abc"]
        with self.step("create what is destroyed", *three, file, atomic=False):
            it.create(id="ends/a")
            it.write_file("ends/a", "work/a.txt", "a\n")
            it.create(id="ends/b")
            it.create(id="ends/c")
        with self.step("destroy", state("ends/a", "trash"), work("ends/a", "work/a.txt", None)):
            it.destroy("ends/a", force=True)
        with self.step("undo destroy", state("ends/a", "ready"), file):
            it.undo()
        with self.step("destroy again", state("ends/a", "trash"), work("ends/a", "work/a.txt", None)):
            it.destroy("ends/a", force=True)
        with self.step("trash restore", state("ends/a", "ready"), file):
            it.restore_trashed("ends/a")
        with self.step("destroy a second", state("ends/b", "trash")):
            it.destroy("ends/b", force=True)
        with self.step("destroy a third", state("ends/c", "trash")):
            it.destroy("ends/c")
        with self.step("trash restore elsewhere", state("ends/c", None), state("ends/d", "ready")):
            it.restore_trashed("ends/c", new_id="ends/d")
        with self.step("sweep", state("ends/b", None)):
            it.sweep(everything=True)

    def asking(self) -> None:
        it, path = self.it, "work/a.txt"
        with self.step(
            "create what agents ask for", state("asking/a", "ready"), work("asking/a", path, "a\n"), atomic=False
        ):
            it.create(id="asking/a")
            it.write_file("asking/a", path, "a\n")
        agent = it.acting_as("bot", agent_of="asking/a")
        questions = []
        with self.step("ask") as claims:
            for text in ("granted\n", "denied\n"):
                try:
                    agent.write_file("asking/a", path, text)
                    raise AssertionError(text)
                except ApprovalRequired as asked:
                    questions.append(str(asked.details["approval_id"]))
                    claims[f"approval {questions[-1]}"] = "open"
        granted, denied = (f"approval {each}" for each in questions)
        with self.step("approve", {granted: "granted"}):
            it.approve(questions[0])
        with self.step("deny", {denied: "denied"}):
            it.deny(questions[1])
        with self.step("use an approval", {granted: "used"}, work("asking/a", path, "granted\n"), atomic=False):
            agent.write_file("asking/a", path, "granted\n")
        with self.step("pin", {"pinned asking/a": True}):
            it.pin("asking/a")
        with self.step("policy", {"policy asking/a": "trusting"}):
            it.change_policy("asking/a", "trusting")
        with self.step("mail") as claims:
            message = it.send_message("asking/a", "hello\n")
            claims[f"message asking/a {message.id}"] = "hello\n"
        with self.step("token") as claims:
            token = it.create_token("asking/a")[0].token_id
            claims[f"token {token}"] = True
        with self.step("revoke a token", {f"token {token}": False}):
            it.revoke_token(token)


if __name__ == "__main__":
    workload = Workload(*sys.argv[1:4])
    for part in sys.argv[4:] or PARTS:
        getattr(workload, part)()

"""One game: a random agent, a random stranger's folder, and random host commands, until something gets out.

Every choice comes from the seed, so a fault is played again by its number. A fault is one of: something outside was
opened, changed or printed (`oracle.py`); a command hung; a command ended in a traceback; at the end a workspace cannot
be destroyed or the log does not verify.
"""

from __future__ import annotations

import json
import random
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from fuzz import agent, zygote
from fuzz.oracle import Outside
from people import Person, remove_tree

HUNG_AFTER_SECONDS = 120  # a busy machine is slow, but not for ever
PYTHON = "/usr/bin/python3"
_BOUNDED = ("--timeout", "30")  # an attacker that hangs by itself is no fault of ours
_SETTINGS = """\
workspaces: {default_max_size_mb: 50}
policy: {overwrite: allow, delete: allow, execute: allow}
sandbox: {processes: null}  # so that an ordinary user can run without a sandbox at all
"""


class Escape(AssertionError):
    """The game found a fault; the text has the seed and every command up to it."""


class Game:
    """A person with a home, a folder from a stranger, and workspaces that the agent works in."""

    def __init__(self, person: Person, seed: int) -> None:
        self.person = person
        self.seed = seed
        self.chance = random.Random(seed)
        self.story: list[str] = []
        self.ids: list[str] = []
        self.count = 0
        base = person.folder(f"game{seed}")
        person.home = base / "home"
        self.base = base
        self.outside = Outside(person)
        # The stranger's folder has a parent of its own: the attacker's `..` is no directory of anybody else's.
        self.origin = person.folder(f"game{seed}/stranger/origin", {"a.txt": "one\n", "sub/b.txt": "two\n"})
        person.folder(f"game{seed}/cwd", {"feed": "new content\n"})
        person.folder(".config/aw", {"aw.yaml": _SETTINGS})
        person.sh(
            "git init -q -b main && git add . && git -c user.name=a -c user.email=a@example.org commit -qm one",
            cwd=self.origin,
        )
        person.own(base / "stranger")
        source = Path(zygote.__file__).read_text()
        self.process = person.start(
            [person.python_program, "-B", "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)
        if self.process.stdout:
            self.process.stdout.close()
        self.outside.close()
        remove_tree(self.base)
        remove_tree(self.outside.path)

    def play(self, steps: int) -> None:
        """Play so many moves, then clean up as a user would."""
        self.create()
        moves: list[tuple[int, Callable[[], object]]] = [
            (3, self.create),
            (7, self.attack_inside),
            (2, self.attack_without_walls),
            (3, self.attack_origin),
            (4, self.fork),
            (14, self.verb),
        ]
        for _ in range(steps):
            self.chance.choices([move for _, move in moves], [weight for weight, _ in moves])[0]()
        self.end()

    # -- moves ---------------------------------------------------------------------------------------------------------

    def create(self) -> None:
        source = self.chance.choice(
            [
                f"overlay:{self.origin}",
                f"overlay:{self.origin}",
                "empty",
                f"worktree:{self.origin}",
                f"folder:{self.origin}",
                "template:t",
                f"archive:{self.base}/cwd/kept.aw.tar.zst",
            ]
        )
        self.count += 1
        id = f"w/{self.count}"
        if self.aw("create", "--id", id, "--source", source)["code"] == 0:
            self.ids.append(id)

    def fork(self) -> None:
        if self.ids:
            self.count += 1
            id = f"w/{self.count}"
            if self.aw("fork", self.chance.choice(self.ids), "--as", id)["code"] == 0:
                self.ids.append(id)

    def attack_inside(self) -> None:
        """The agent in its sandbox: it may do anything to its own tree, and looks for the token afterwards."""
        if self.ids:
            self.aw("run", self.chance.choice(self.ids), *_BOUNDED, "--", *self.attacker(hunt=True), is_run=True)

    def attack_without_walls(self) -> None:
        if self.ids:
            which = self.chance.choice(self.ids)
            self.aw("run", which, *_BOUNDED, "--sandbox", "none", "--", *self.attacker(hunt=False), is_run=True)

    def attack_origin(self) -> None:
        """The folder is a stranger's: an archive that somebody unpacked, or a clone."""
        words = self.attacker(hunt=False)
        self.story.append(f"cd {self.origin} && {PYTHON} tests/fuzz/agent.py {shlex.join(words[3:])}")
        self.person.do(*words, cwd=self.origin)
        self.judge("")

    def attacker(self, *, hunt: bool) -> list[str]:
        seed, count = self.chance.randrange(1 << 30), self.chance.choice([1, 2, 5, 12])
        source = Path(agent.__file__).read_text()
        return [
            PYTHON,
            "-c",
            source,
            str(seed),
            str(count),
            str(self.outside.path),
            self.outside.token[::-1],
            str(int(hunt)),
        ]

    def verb(self) -> None:
        """Any host command on a random workspace."""
        which = self.chance.choice(self.ids) if self.ids else "w/none"
        path = self.chance.choice(
            ["work", "output", "tmp", "work/a.txt", "work/.git", "work/.git/config", "work/sub", ".aw", "output/result"]
        )
        cwd = f"{self.base}/cwd"
        branch = self.chance.choice(["fuzz", f"../../../../../../..{self.outside.path}/secret", "a/../b", "HEAD"])
        words = self.chance.choice(
            [
                ["snapshot", which],
                ["snapshot", which],
                ["restore", which, "SNAPSHOT"],
                ["restore", which, "SNAPSHOT"],
                ["restore", which, "SNAPSHOT", path],
                ["diff", which],
                ["diff", which, "--stat"],
                ["apply", which],
                ["apply", which],
                ["apply", which, "--to", f"branch:{branch}"],
                ["apply", which, "--to", f"patch:{cwd}/p{self.count}"],
                ["archive", which, "-o", f"{cwd}/kept.aw.tar.zst", "--force"],
                ["template", "add", "t", "--from", which],
                ["template", "add", f"o{self.count}", str(self.origin)],
                ["template", "remove", "t"],
                ["destroy", which],
                ["undo"],
                ["sweep"],
                ["usage"],
                ["list", "--changes"],
                ["list", "--all"],
                ["show", which, "--origin"],
                ["path", which],
                ["tree", which, path],
                ["ls", which, path],
                ["cat", which, path],
                ["stat", which, path],
                ["find", which, "*"],
                ["grep", which, "token"],
                ["put", which, path],
                ["put", which, f"{path}/new"],
                ["mv", which, path, "work/elsewhere"],
                ["rm", which, path],
                ["mkdir", which, f"{path}/made"],
                ["overlaps"],
                ["ops"],
                ["trash", "list"],
                ["verify"],
                ["repair"],
                ["config", "show"],
                ["run", which, "--", "git", "status"],
                ["run", which, "--", "git", "log", "-3"],
            ]
        )
        if "SNAPSHOT" in words:
            words[words.index("SNAPSHOT")] = self.snapshot_of(which)
        # In the stranger's folder the command also reads what lies there: aw.yaml.
        self.aw(*words, cwd=str(self.origin) if self.chance.random() < 0.15 else cwd, is_run=words[0] == "run")

    def snapshot_of(self, which: str) -> str:
        done = self.aw("--format", "json", "snapshots", which)
        try:
            found = [each["id"] for each in json.loads(str(done["out"]))]
        except (ValueError, TypeError, KeyError):
            found = []
        return self.chance.choice([*found, "base"])

    def end(self) -> None:
        """Nothing that happened may keep a workspace from being destroyed, or the log from being proved."""
        for id in self.ids:
            done = self.aw("destroy", id, "--force")
            if done["code"] not in (0, 3):
                self.fail([f"destroy --force answered {done['code']}: {done['err']}"])
        for words in (["verify"], ["sweep"], ["trash", "empty"]):
            done = self.aw(*words)
            if done["code"] != 0:
                self.fail([f"{words} answered {done['code']}: {done['err']}"])
        copies = self.outside.copies_in(self.base)
        if copies:
            self.fail([f"{copy} holds the token" for copy in copies[:3]])

    # -- commands ------------------------------------------------------------------------------------------------------

    def aw(self, *words: str, cwd: str = "", is_run: bool = False) -> dict[str, object]:
        shown = [word if len(word) < 2000 else '"$(cat tests/fuzz/agent.py)"' for word in words]
        self.story.append("aw " + shlex.join(shown))
        order = {
            "argv": list(words),
            "cwd": cwd or f"{self.base}/cwd",
            "feed": "new content\n",
            "seconds": HUNG_AFTER_SECONDS,
        }
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        done: dict[str, object] = json.loads(self.process.stdout.readline())
        faults = []
        if done["code"] is None:
            faults.append(f"hung for {HUNG_AFTER_SECONDS} s")
        if "Traceback (most recent call last)" in str(done["err"]):
            faults.append("ended in a traceback")
        if done["code"] == 1 and not is_run:  # a run answers with the command's own code
            faults.append("answered 1, a bug of ours")
        self.judge(f"{done['out']}{done['err']}", faults)
        return done

    def judge(self, output: str, faults: Sequence[str] = ()) -> None:
        found = [*self.outside.faults(output), *faults]
        if found:
            self.fail([*found, output[-6000:]])

    def fail(self, faults: list[str]) -> None:
        lines = "\n".join(self.story)
        raise Escape(f"seed {self.seed} as {self.person.name}:\n{lines}\n\n" + "\n".join(faults))

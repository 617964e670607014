"""Do a plan in a folder of the user's: all of it or nothing.

    build     everything new is written aside, in `.aw-apply-ID/` in the folder itself (a rename does not leave a disk)
    check     what the plan found in the folder must still be there, else `origin_moved`
    journal   written and synced: from here on a crash is finished, before it is taken back
    act       renames only: the old goes into `.aw-apply-ID/old`, the new takes its place
    clean     the journal goes first, then the rest

An error while acting (a full disk, no permission) takes back what was done, by renames. After a crash `finish_apply`
does whichever is due; it can itself be killed and started again: each step shows by its files whether it is done.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress

from carrel.errors import OriginMoved, from_os
from carrel.model.change import Plan, Step, Undo
from carrel.snapshots.entries import CHUNK, DIR, FILE, Entry
from carrel.snapshots.folders import OPEN_DIR
from carrel.snapshots.hands import Hands, remove_folder, write_pieces
from carrel.snapshots.merge import Folder, fingerprint
from carrel.snapshots.packs import sync_folder
from carrel.snapshots.trees import Tree, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from carrel.snapshots.objects import Store

PREFIX = ".aw-apply-"
_JOURNAL = "journal"
_BACK = "journal-back"


def apply_plan(store: Store, plan: Plan, folder: str) -> Undo:
    """Do the plan in the folder and give the plan that takes it back.

    Raises OriginMoved if the plan has unmarked clashes or the folder is not what the plan saw, DiskFull and others;
    then the folder is as it was. New files get the owner of what they replace, or of their directory.
    """
    open_clashes = [clash.path for clash in plan.clashes if not clash.marked]
    if open_clashes:
        raise OriginMoved(
            f"{len(open_clashes)} of the changed files were changed in the origin too: {', '.join(open_clashes[:5])}",
            hint="aw diff shows the changes; apply other paths, a branch, or with conflict markers",
        )
    for step in plan.steps:
        split(step.path)
    finish_apply(folder)
    undo = Undo(folder=folder, plan=reverse(plan))
    if not plan.steps:
        return undo
    try:
        _Apply(folder, PREFIX + os.urandom(8).hex()).run(store, plan)
    except OSError as error:
        raise from_os(error, "applying the changes") from error
    return undo


def finish_apply(folder: str) -> int:
    """Finish or take back what a killed apply left in the folder; gives how many were found."""
    found = 0
    try:
        for name in sorted(os.listdir(folder)):
            if name.startswith(PREFIX):
                found += 1
                apply = _Apply(folder, name)
                apply.resume()
    except OSError as error:
        raise from_os(error, "finishing an interrupted apply") from error
    return found


def reverse(plan: Plan) -> Plan:
    """The plan that takes this one back. Contents that it brings back were kept when the plan was made."""
    steps: list[Step] = []
    for step in reversed(plan.steps):
        after = expected_after(step)
        if step.action == "rmdir":
            steps.append(Step(path=step.path, action="mkdir", mode=step.mode))
        elif step.action == "mkdir":
            steps.append(Step(path=step.path, action="rmdir", before="d", mode=step.mode))
        elif step.action == "chmod":
            steps.append(step.replace(mode=step.old_mode, old_mode=step.mode))
        elif not step.before:
            steps.append(Step(path=step.path, action="delete", before=after))
        elif step.before.startswith("l:"):
            steps.append(Step(path=step.path, action="link", target=step.before[2:], before=after))
        else:
            mode, _, digest = step.before[1:].partition(":")
            steps.append(
                Step(
                    path=step.path,
                    action="write",
                    digest=digest,
                    size=step.old_size,
                    mode=int(mode, 8),
                    mtime_ns=step.old_mtime_ns,
                    before=after,
                    old_size=step.size,
                    old_mtime_ns=step.mtime_ns,
                )
            )
    return Plan(steps=tuple(sorted(steps, key=_turn)))


def _turn(step: Step) -> int:
    """What goes has to go before what comes in its place; a directory is open while something is done in it."""
    if step.action == "chmod":
        return 0 if step.mode & 0o200 else 4
    return {"delete": 1, "rmdir": 2}.get(step.action, 3)


def expected_after(step: Step) -> str:
    """What the folder shows at the step's path when it is done."""
    if step.action == "write":
        return f"f{step.mode & 0o1777:o}:{step.digest}"
    return {"link": f"l:{step.target}", "mkdir": "d", "chmod": "d"}.get(step.action, "")


def is_done(ours: Folder, step: Step) -> bool:
    """Whether the folder shows that a step is done."""
    found = ours.find(step.path)
    if step.action == "chmod":
        return found is not None and found.kind == DIR and found.mode == step.mode
    return fingerprint(ours, found) == expected_after(step)


class _Apply:
    """One application, before or after a crash. `old/N` and `new/N` belong to step N."""

    def __init__(self, folder: str, name: str) -> None:
        self._folder = folder
        self._name = name
        self._aside = os.path.join(folder, name)
        fd = os.open(folder, OPEN_DIR)
        try:
            self._owner = (os.fstat(fd).st_uid, os.fstat(fd).st_gid)
            self._hands = Hands(fd, self._owner)
        finally:
            os.close(fd)

    def run(self, store: Store, plan: Plan) -> None:
        try:
            os.mkdir(self._aside, 0o700)
            os.mkdir(f"{self._aside}/old")
            os.mkdir(f"{self._aside}/new")
            self._build(store, plan)
            steps = self._check(plan)
            self._write_journal(steps)
        except BaseException:
            self.clean()
            raise
        try:
            self.act(steps)
        except BaseException:
            self.take_back(steps)
            self.clean()
            raise
        self.clean()

    # -- before the point of no return ---------------------------------------------------------------------------------

    def _build(self, store: Store, plan: Plan) -> None:
        with Tree(store, "empty") as tree:
            for number, step in enumerate(plan.steps):
                path = f"{self._aside}/new/{number}"
                if step.action == "link":
                    os.symlink(step.target, path)
                elif step.action == "write":
                    entry = Entry(FILE, size=step.size, digest=bytes.fromhex(step.digest))
                    self._build_file(path, tree.pieces(entry), step)
                else:
                    continue
                self._give(path, step)
        sync_folder(f"{self._aside}/new")

    def _build_file(self, path: str, pieces: Iterator[tuple[int, bytes]], step: Step) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            write_pieces(fd, pieces, step.size, sparse=step.size > CHUNK)
            os.fchmod(fd, step.mode & 0o1777)
            if step.mtime_ns:
                os.utime(fd, ns=(step.mtime_ns, step.mtime_ns))
            os.fsync(fd)
        finally:
            os.close(fd)

    def _give(self, path: str, step: Step) -> None:
        """The owner of what it replaces, else of the nearest directory that exists."""
        if not self._hands.is_root:
            return
        where = step.path
        status = self._hands.status(where)
        while status is None and "/" in where:
            where = where.rpartition("/")[0]
            status = self._hands.status(where)
        owner = (status.st_uid, status.st_gid) if status is not None else self._owner
        os.chown(path, *owner, follow_symlinks=False)
        if step.action == "write":
            os.chmod(path, step.mode & 0o1777)  # chown takes bits away

    def _check(self, plan: Plan) -> list[Step]:
        """See that the folder still is what the plan saw, and give what is to be done.

        What an earlier step takes away is not in the way, and a directory that is there already need not be made.
        """
        gone = {step.path for step in plan.steps if step.action in ("delete", "rmdir")}
        steps = []
        with Folder(self._folder) as ours:
            for step in plan.steps:
                found = fingerprint(ours, ours.find(step.path))
                freed = step.before == "" and (step.path in gone or _is_below(step.path, gone))
                if step.action == "mkdir" and found == "d" and not freed:
                    steps.append(step.replace(action="stay"))
                elif (found != step.before and not freed) or (step.action == "chmod" and is_done(ours, step)):
                    raise OriginMoved(
                        f"{step.path} changed in the origin while the changes were being applied", hint="apply again"
                    )
                else:
                    steps.append(step)
        return steps

    # -- the journal ---------------------------------------------------------------------------------------------------

    def _write_journal(self, steps: list[Step]) -> None:
        data = json.dumps([step.as_dict() for step in steps]).encode()
        temporary = f"{self._aside}/{_JOURNAL}.new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, f"{self._aside}/{_JOURNAL}")
        sync_folder(self._aside)
        sync_folder(self._folder)

    def resume(self) -> None:
        """Finish or take back what a killed process left. An error on the way leaves it to be resumed again."""
        back, steps = self._read_journal(_BACK), self._read_journal(_JOURNAL)
        if back is not None:
            self.take_back(back)
        elif steps is not None:
            try:
                self.act(steps)
            except OSError:
                self.take_back(steps)
                self.clean()
                raise
        self.clean()

    def _read_journal(self, name: str) -> list[Step] | None:
        try:
            with open(f"{self._aside}/{name}", "rb") as file:
                return [Step(**step) for step in json.load(file)]
        except FileNotFoundError:
            return None

    # -- after it ------------------------------------------------------------------------------------------------------

    def act(self, steps: list[Step]) -> None:
        """Do every step that is not done yet. Renames and directories only."""
        for number, step in enumerate(steps):
            if step.action == "delete":
                self._move_away(number, step)
            elif step.action == "rmdir":
                self._remove_folder(step)
            elif step.action == "mkdir":
                self._make_folder(step)
            elif step.action == "chmod":
                self._set_mode(step, step.mode)
            elif step.action in ("write", "link"):
                self._replace(number, step)

    def _move_away(self, number: int, step: Step) -> None:
        old = f"{self._aside}/old/{number}"
        if os.path.lexists(old) or self._hands.status(step.path) is None:
            return
        parent, name = self._hands.parent(step.path)
        os.rename(name, old, src_dir_fd=parent)

    def _replace(self, number: int, step: Step) -> None:
        new, old = f"{self._aside}/new/{number}", f"{self._aside}/old/{number}"
        if not os.path.lexists(new):
            return  # done before the crash
        parent, name = self._hands.parent(step.path)
        if step.before and not os.path.lexists(old):
            try:
                # A second name for the old file: then the rename over it leaves no moment without either.
                os.link(name, old, src_dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                pass
            except OSError:  # a file system without hard links
                os.rename(name, old, src_dir_fd=parent)
        os.rename(new, name, dst_dir_fd=parent)

    def _make_folder(self, step: Step) -> None:
        if self._hands.status(step.path) is not None:
            return
        parent, name = self._hands.parent(step.path)
        status = os.fstat(parent)
        os.mkdir(name, 0o755, dir_fd=parent)
        if self._hands.is_root:
            os.chown(name, status.st_uid, status.st_gid, dir_fd=parent, follow_symlinks=False)
        fd = os.open(name, OPEN_DIR, dir_fd=parent)
        try:
            os.fchmod(fd, step.mode & 0o1777)
        finally:
            os.close(fd)

    def _set_mode(self, step: Step, mode: int) -> None:
        self._hands.set_folder_mode(step.path, mode)

    def _remove_folder(self, step: Step) -> None:
        status = self._hands.status(step.path)
        if status is None or not stat.S_ISDIR(status.st_mode):
            return
        self._hands.forget_below(step.path)
        parent, name = self._hands.parent(step.path)
        with suppress(OSError):  # the user put something into it: it stays
            os.rmdir(name, dir_fd=parent)

    def take_back(self, steps: list[Step]) -> None:
        """Undo what was done, the last step first. The decision is on the disk before anything moves."""
        with suppress(FileNotFoundError):
            os.rename(f"{self._aside}/{_JOURNAL}", f"{self._aside}/{_BACK}")
        self._hands.forget()
        for number, step in reversed(list(enumerate(steps))):
            old, new = f"{self._aside}/old/{number}", f"{self._aside}/new/{number}"
            if step.action == "mkdir":
                self._remove_folder(step)
            elif step.action == "rmdir":
                self._make_folder(step)
            elif step.action == "chmod":
                self._set_mode(step, step.old_mode)
            elif os.path.lexists(old):
                parent, name = self._hands.parent(step.path)
                os.rename(old, name, dst_dir_fd=parent)
            elif step.action in ("write", "link") and not step.before and not os.path.lexists(new):
                self._hands.remove(step.path)

    def clean(self) -> None:
        """Remove what lies aside; the journal first, so that nobody acts on a half."""
        self._hands.close()
        for name in (_JOURNAL, _BACK):
            with suppress(FileNotFoundError):
                os.unlink(f"{self._aside}/{name}")
        fd = os.open(self._folder, OPEN_DIR)
        try:
            with suppress(FileNotFoundError):
                remove_folder(fd, self._name)
        finally:
            os.close(fd)


def _is_below(path: str, gone: set[str]) -> bool:
    return any(path.startswith(each + "/") for each in gone)

"""Apply a plan to a folder of the user: atomically, and without overwriting a version that the plan has not seen.

    check     the folder must still match the fingerprints in the plan, else `origin_moved`
    build     write all new files to a staging directory, `.aw-apply-RANDOM/` in the folder itself (a rename stays on
              one disk)
    act       renames only. A new file takes a free name; a replacement is swapped with the old file, and the old file
              is compared with the fingerprint in the plan. If the user saved in between, every step is rolled back
    clean     check the files that were moved aside once more before removing them: a program that had a file open may
              have written to it. Such a version is moved to `aw-kept-RANDOM/` in the folder and reported

The progress is recorded in a journal in the home (see `journal`). An error while acting (a full disk, no permission)
rolls back. After a crash `finish_apply` completes the apply or rolls it back; it can itself be killed and restarted,
because the files show which steps are done. Neither direction overwrites a third version.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
from contextlib import contextmanager, suppress

from workstead.errors import OriginMoved, Refused, from_os
from workstead.model.change import Plan, Step
from workstead.model.value import Value
from workstead.snapshots.diff import is_in_git
from workstead.snapshots.entries import CHUNK, FILE, MODE_BITS, Entry
from workstead.snapshots.folders import OPEN_DIR
from workstead.snapshots.journal import PREFIX, Journal, is_own_name, new_aside, read_journal, write_journal
from workstead.snapshots.merge import is_below
from workstead.snapshots.tree_writer import Hands, remove_folder, write_pieces
from workstead.snapshots.trees import Tree, digest_of, split
from workstead.snapshots.walker import OPEN_FILE
from workstead.system.files.durable import sync_trees
from workstead.system.files.root import rename_exchange, rename_no_replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from workstead.snapshots.journal import Mark
    from workstead.snapshots.objects import Store

KEPT = "aw-kept-"
_ACTIONS = ("write", "link", "mkdir", "chmod", "delete", "rmdir")
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_ACCESS_ACL, _DEFAULT_ACL = "system.posix_acl_access", "system.posix_acl_default"
_OF_CONTENT = ("security.capability", "security.ima", "security.evm")  # the kernel drops them when content changes
_ACL_GROUP, _ACL_OTHER = 0x04, 0x20


class Outcome(Value):
    """The result of an apply."""

    done: bool  # False: the folder is unchanged (rolled back)
    plan: Plan  # as executed: with the modes that the files really got
    kept: tuple[str, ...] = ()  # paths, relative to the folder, of versions that the user saved during the apply


class _Third(Exception):
    """The folder has a third version: neither the one that the plan saw nor the one that we wrote."""


def apply_plan(store: Store, plan: Plan, folder: str, journal_path: str) -> Outcome:
    """Apply the plan to the folder.

    Raise OriginMoved if the plan has unmarked conflicts or the folder does not match the plan, and DiskFull and others;
    in each case the folder is unchanged. A replaced file keeps its owner, group, ACL and xattrs; a new file gets the
    owner of its directory. The caller drops the journal after the log has recorded the end.
    """
    open_clashes = [clash.path for clash in plan.clashes if not clash.marked]
    if open_clashes:
        raise OriginMoved(
            f"{len(open_clashes)} of the changed files were changed in the origin too: {', '.join(open_clashes[:5])}",
            hint="aw diff shows the changes; apply other paths, a branch, or with conflict markers",
        )
    check_plan(plan)
    if not plan.steps:
        return Outcome(done=True, plan=plan)
    try:
        with _open_folder(folder) as fd:
            journal = Journal(folder=folder, folder_id=_identity(os.fstat(fd)), aside=new_aside())
            with _Apply(plan, fd, journal, journal_path) as work:
                return work.run(store)
    except OSError as error:
        raise from_os(error, "applying the changes") from error


def finish_apply(plan: Plan, journal_path: str) -> Outcome | None:
    """Crash recovery: complete or roll back an apply; None if it had not begun. The caller drops the journal."""
    journal = read_journal(journal_path)
    if journal is None:
        return None
    check_plan(plan)
    try:
        with _open_folder(journal.folder) as fd:
            if _identity(os.fstat(fd)) != journal.folder_id:
                return Outcome(done=journal.state == "done", plan=plan)
            with _Apply(plan, fd, journal, journal_path) as work:
                return work.resume()
    except (FileNotFoundError, NotADirectoryError):
        return Outcome(done=journal.state == "done", plan=plan)  # the user removed the folder
    except OSError as error:
        raise from_os(error, "finishing an interrupted apply") from error


def check_plan(plan: Plan) -> None:
    """Refuse a plan with a path that leads out of the folder, into `.git` or into the staging directory of an apply."""
    for step in plan.steps:
        parts = split(step.path)
        if not parts or step.action not in _ACTIONS or is_in_git(step.path):
            raise Refused(f"{step.action} {step.path!r} cannot be done in the origin", hint="nothing was changed")
        if any(map(is_own_name, parts)):
            raise Refused(f"{step.path!r} has a name that aw uses itself", hint="give it another name")


def reverse(plan: Plan) -> Plan:
    """Return the plan that undoes this one. The contents that it restores were stored when the plan was made."""
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
    """Return the sort rank of a step: removals before replacements; a directory stays writable while steps use it."""
    if step.action == "chmod":
        return 0 if step.mode & 0o200 else 4
    return {"delete": 1, "rmdir": 2}.get(step.action, 3)


def expected_after(step: Step) -> str:
    """Return the fingerprint that the folder has at the step's path after the step."""
    if step.action == "write":
        return f"f{step.mode & MODE_BITS:o}:{step.digest}"
    return {"link": f"l:{step.target}", "mkdir": "d", "chmod": "d"}.get(step.action, "")


def fingerprint_at(fd: int, name: str) -> str:
    """Return the fingerprint of a name in an open directory, as `merge.fingerprint` does; `?` if unreadable."""
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            return "d"
        if stat.S_ISLNK(status.st_mode):
            return f"l:{os.readlink(name, dir_fd=fd)}"
        if not stat.S_ISREG(status.st_mode):
            return "x"
        file = os.open(name, OPEN_FILE, dir_fd=fd)
    except FileNotFoundError:
        return ""
    except OSError:
        return "?"
    try:
        status = os.fstat(file)
        return f"f{status.st_mode & MODE_BITS:o}:{digest_of(file, status.st_size).hex()}"
    finally:
        os.close(file)


@contextmanager
def _open_folder(path: str) -> Iterator[int]:
    fd = os.open(path, OPEN_DIR & ~os.O_NOFOLLOW)  # follow links: the user may name the folder through a symbolic link
    try:
        yield fd
    finally:
        os.close(fd)


class _Apply:
    """One apply, before or after a crash. `new/N` and `old/N` in the staging directory belong to step N."""

    def __init__(self, plan: Plan, folder: int, journal: Journal, journal_path: str) -> None:
        self._plan = plan
        self._steps = plan.steps
        self._folder = folder
        self._journal = journal
        self._journal_path = journal_path
        status = os.fstat(folder)
        self._owner = (status.st_uid, status.st_gid)
        self._hands = Hands(folder, self._owner)
        self._aside = self._new = self._old = -1
        self._seen: dict[tuple[int, int], tuple[int, ...]] = {}  # (fd, step) -> signature when compared
        self._places: dict[str, tuple[os.stat_result, bytes]] = {}  # cache of directories: status and default ACL

    def __enter__(self) -> _Apply:
        return self

    def __exit__(self, *_: object) -> None:
        self._hands.close()
        for fd in (self._aside, self._new, self._old):
            if fd >= 0:
                os.close(fd)

    # -- the whole apply -----------------------------------------------------------------------------------------------

    def run(self, store: Store) -> Outcome:
        try:
            stay = self._check()
            write_journal(self._journal_path, self._journal)
            self._make_aside()
            built = self._build(store)
            sync_trees(self._folder)
            aside_id = _identity(os.fstat(self._aside))
            self._enter(self._journal.replace(state="acting", aside_id=aside_id, stay=stay, built=built))
        except BaseException:
            self._clean()
            raise
        try:
            self._act()
        except _Third as third:
            self._take_back()
            kept = self._kept()
            raise OriginMoved(
                f"{third} changed in the origin while the changes were being applied",
                hint="apply again; what was changed is as it was",
                details={"kept": list(kept)} if kept else None,
            ) from None
        except BaseException:
            self._take_back()
            raise
        self._finish("done")
        return self._outcome()

    def resume(self) -> Outcome:
        """Complete or roll back an interrupted apply. After an error here it can be resumed again."""
        state = self._journal.state
        if not self._open_aside():
            if state in ("acting", "back"):
                state = "done" if all(self._is_done(step) for step in self._steps) else "undone"
                self._enter(self._journal.replace(state=state))
        elif state == "acting":
            try:
                self._act()
                self._finish("done")
            except (_Third, OSError):
                self._take_back()
        elif state == "back":
            self._take_back()
        else:
            self._clean()
        return self._outcome()

    def _outcome(self) -> Outcome:
        built = self._journal.built or [None] * len(self._steps)
        steps = tuple(
            step.replace(mode=mark[3]) if mark and step.action == "write" else step
            for step, mark in zip(self._steps, built, strict=True)
        )
        return Outcome(done=self._journal.state == "done", plan=self._plan.replace(steps=steps), kept=self._kept())

    def _enter(self, journal: Journal) -> None:
        write_journal(self._journal_path, journal)
        self._journal = journal

    def _finish(self, state: str) -> None:
        """Record that the folder has its final content: from here on only temporary files are left to remove."""
        sync_trees(self._folder)
        self._enter(self._journal.replace(state=state))
        self._clean()

    # -- before anything in the folder changes -------------------------------------------------------------------------

    def _check(self) -> tuple[int, ...]:
        """Check that the folder still matches the plan; return the steps that have nothing to do.

        A path that an earlier step removes is not a conflict, and a directory that already exists is not created.
        """
        gone = {step.path for step in self._steps if step.action in ("delete", "rmdir")}
        absent: set[str] = set()  # paths that do not exist, so nothing can be below them
        stay = []
        for number, step in enumerate(self._steps):
            found = "" if step.path.rpartition("/")[0] in absent else self._look(step.path)
            if found != "d":
                absent.add(step.path)
            freed = found != step.before == "" and (step.path in gone or is_below(step.path, gone))
            if step.action == "mkdir" and found == "d" and not freed:
                stay.append(number)
            elif (found != step.before and not freed) or (step.action == "chmod" and self._is_done(step)):
                raise OriginMoved(
                    f"{step.path} changed in the origin while the changes were being applied", hint="apply again"
                )
        return tuple(stay)

    def _look(self, path: str) -> str:
        try:
            return fingerprint_at(*self._hands.parent(path))
        except (FileNotFoundError, NotADirectoryError):
            return ""

    def _is_done(self, step: Step) -> bool:
        if step.action == "rmdir":
            return True  # a directory stays if the user put something into it
        if step.action == "chmod":
            status = self._hands.status(step.path)
            return status is not None and stat.S_ISDIR(status.st_mode) and status.st_mode & MODE_BITS == step.mode
        return self._look(step.path) == expected_after(step)

    def _make_aside(self) -> None:
        os.mkdir(self._journal.aside, 0o700, dir_fd=self._folder)
        self._aside = os.open(self._journal.aside, OPEN_DIR, dir_fd=self._folder)
        with suppress(OSError):  # the file system has no such attribute, or no attributes
            os.removexattr(self._aside, _DEFAULT_ACL)  # files built here get the permissions of their final directory
        os.fchmod(self._aside, 0o700)  # without the group bits of the directory
        for name in ("new", "old"):
            os.mkdir(name, 0o700, dir_fd=self._aside)
        self._open_parts()

    def _open_aside(self) -> bool:
        """Open the staging directory named in the journal; False if it is gone or was replaced by another one."""
        state = self._journal.state
        try:
            self._aside = os.open(self._journal.aside, OPEN_DIR, dir_fd=self._folder)
            if state != "building" and _identity(os.fstat(self._aside)) != self._journal.aside_id:
                return False
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            self._open_parts()
        except (FileNotFoundError, NotADirectoryError):
            # Not created yet, or half removed; removal begins only after all of it was checked.
            return state not in ("acting", "back")
        return True

    def _open_parts(self) -> None:
        self._new = os.open("new", OPEN_DIR, dir_fd=self._aside)
        self._old = os.open("old", OPEN_DIR, dir_fd=self._aside)

    def _build(self, store: Store) -> tuple[Mark | None, ...]:
        made = {step.path for step in self._steps if step.action == "mkdir"}
        built: list[Mark | None] = []
        with Tree(store, "empty") as tree:
            for number, step in enumerate(self._steps):
                name = str(number)
                if step.action == "link":
                    os.symlink(step.target, name, dir_fd=self._new)
                    if self._hands.is_root:
                        place = self._replaced(step) or self._place(step.path, made)[0]
                        os.chown(name, place.st_uid, place.st_gid, dir_fd=self._new, follow_symlinks=False)
                elif step.action == "write":
                    entry = Entry(FILE, size=step.size, digest=bytes.fromhex(step.digest))
                    fd = os.open(name, _NEW_FILE, 0o600, dir_fd=self._new)
                    try:
                        write_pieces(fd, tree.pieces(entry), step.size, sparse=step.size > CHUNK)
                        os.fchmod(fd, self._give_rights(fd, step, made))
                        if step.mtime_ns:
                            os.utime(fd, ns=(step.mtime_ns, step.mtime_ns))
                    finally:
                        os.close(fd)
                else:
                    built.append(None)
                    continue
                built.append(_mark(os.stat(name, dir_fd=self._new, follow_symlinks=False)))
        return tuple(built)

    # -- owner and permissions -----------------------------------------------------------------------------------------

    def _replaced(self, step: Step) -> os.stat_result | None:
        return self._hands.status(step.path) if step.before and step.before != "d" else None

    def _place(self, path: str, made: set[str]) -> tuple[os.stat_result, bytes]:
        """Return the status and default ACL of the nearest existing directory above a path."""
        above = path.rpartition("/")[0]
        new = []
        while above and above not in self._places:
            if above not in made:
                with suppress(FileNotFoundError, NotADirectoryError):
                    self._places[above] = _place_of(self._hands.folder(above))
                    break
            new.append(above)
            above = above.rpartition("/")[0]
        if not above and "" not in self._places:
            self._places[""] = _place_of(self._folder)
        for each in new:
            self._places[each] = self._places[above]
        return self._places[above]

    def _give_rights(self, fd: int, step: Step, made: set[str]) -> int:
        """Set owner, group, ACL and xattrs of a new file; return the mode that it gets."""
        mode = step.mode & MODE_BITS
        old = self._replaced(step)
        if old is None or not stat.S_ISREG(old.st_mode):
            place, default_acl = self._place(step.path, made)
            if self._hands.is_root:
                os.fchown(fd, place.st_uid, place.st_gid)
            elif place.st_mode & stat.S_ISGID:
                with suppress(PermissionError):
                    os.fchown(fd, -1, place.st_gid)
            if default_acl:
                os.setxattr(fd, _ACCESS_ACL, default_acl)
                mode &= os.fstat(fd).st_mode | stat.S_ISVTX
            return mode
        keeps_group = True
        if self._hands.is_root:
            os.fchown(fd, old.st_uid, old.st_gid)
        elif os.fstat(fd).st_gid != old.st_gid:
            try:
                os.fchown(fd, -1, old.st_gid)
            except PermissionError:
                keeps_group = False
        parent, name = self._hands.parent(step.path)
        acl = _copy_xattrs(f"/proc/self/fd/{parent}/{name}", fd, keeps_group=keeps_group)
        if not keeps_group:  # a new group: it gets only permissions that its members had before
            shared = old.st_mode >> 3 & old.st_mode & 0o007
            mode &= ~0o007 | shared
            if not acl:
                mode &= ~0o070 | shared << 3
        return mode

    # -- the renames ---------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        """Execute every step that is not done yet."""
        for number, step in enumerate(self._steps):
            if number in self._staying:
                continue
            try:
                if step.action == "delete":
                    self._move_away(number, step)
                elif step.action == "rmdir":
                    self._remove_folder(step)
                elif step.action == "mkdir":
                    self._make_folder(step)
                elif step.action == "chmod":
                    self._set_mode(step, step.old_mode, step.mode)
                elif step.before:
                    self._replace(number, step)
                elif self._has(self._new, number):
                    _move(self._new, str(number), *self._hands.parent(step.path))
            except (FileNotFoundError, NotADirectoryError, FileExistsError, IsADirectoryError) as error:
                raise _Third(step.path) from error

    @property
    def _staying(self) -> frozenset[int]:
        return frozenset(self._journal.stay)

    def _move_away(self, number: int, step: Step) -> None:
        if not self._has(self._old, number):
            try:
                _move(*self._hands.parent(step.path), self._old, str(number))
            except FileNotFoundError:
                return  # the user deleted it too
        self._compare(self._old, number, step)

    def _replace(self, number: int, step: Step) -> None:
        if not self._has(self._new, number):
            return  # already done, on a file system that cannot swap (RENAME_EXCHANGE)
        if self._is_ours(self._new, str(number), number):
            parent, name = self._hands.parent(step.path)
            try:
                rename_exchange(self._new, str(number), parent, name)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
                if not self._has(self._old, number):
                    _move(parent, name, self._old, str(number))
                self._compare(self._old, number, step)
                _move(self._new, str(number), parent, name)
                return
        self._compare(self._new, number, step)

    def _compare(self, fd: int, number: int, step: Step) -> None:
        """Check that the file moved aside is the one that the plan saw."""
        if fingerprint_at(fd, str(number)) != step.before:
            raise _Third(step.path)
        self._seen[fd, number] = _signature(os.stat(str(number), dir_fd=fd, follow_symlinks=False))

    def _make_folder(self, step: Step) -> None:
        parent, name = self._hands.parent(step.path)
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:
            os.close(os.open(name, OPEN_DIR, dir_fd=parent))  # the user created it too; fails if it is a link
            return
        fd = os.open(name, OPEN_DIR, dir_fd=parent)
        try:
            if self._hands.is_root:
                status = os.fstat(parent)
                os.fchown(fd, status.st_uid, status.st_gid)
            mode = step.mode & MODE_BITS
            made = os.fstat(fd).st_mode
            if _get_xattr(fd, _ACCESS_ACL):  # inherited from the directory above: keep the mode within it
                mode &= made | stat.S_ISVTX
            os.fchmod(fd, mode | made & stat.S_ISGID)
        finally:
            os.close(fd)

    def _set_mode(self, step: Step, old: int, new: int) -> None:
        status = self._hands.status(step.path)
        if status is None or not stat.S_ISDIR(status.st_mode) or status.st_mode & MODE_BITS not in (old, new):
            raise _Third(step.path)
        self._hands.set_folder_mode(step.path, new)

    def _remove_folder(self, step: Step) -> None:
        self._hands.forget_below(step.path)
        try:
            parent, name = self._hands.parent(step.path)
            os.rmdir(name, dir_fd=parent)
        except OSError as error:
            # The user removed it, replaced it or put something into it: leave it.
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST):
                raise

    # -- rollback ------------------------------------------------------------------------------------------------------

    def _take_back(self) -> None:
        """Roll back in reverse order. The decision is durable in the journal before the first rename."""
        if self._journal.state != "back":
            self._enter(self._journal.replace(state="back"))
        self._hands.forget()
        for number, step in reversed(list(enumerate(self._steps))):
            if number in self._staying:
                continue
            if step.action == "mkdir":
                self._remove_folder(step)
            elif step.action == "rmdir":
                with suppress(FileNotFoundError, NotADirectoryError, FileExistsError):
                    self._make_folder(step)
            elif step.action == "chmod":
                with suppress(_Third, FileNotFoundError, NotADirectoryError):
                    self._set_mode(step, step.mode, step.old_mode)
            else:
                if step.action != "delete":
                    self._take_out(number, step)
                if self._has(self._old, number):
                    self._put_back(self._old, number, step)
        self._finish("undone")

    def _take_out(self, number: int, step: Step) -> None:
        """Remove our new file from the folder, unless the user has changed it since."""
        name = str(number)
        if not self._has(self._new, number):
            if not self._is_ours_at(step.path, number):
                return
            _move(*self._hands.parent(step.path), self._new, name)
            if not self._is_ours(self._new, name, number):  # race: the user saved between the check and the rename
                self._put_back(self._new, number, step)
        elif not self._is_ours(self._new, name, number):
            if not step.before:
                self._put_back(self._new, number, step)
            elif not self._is_ours_at(step.path, number):
                self._keep(self._new, number, step)  # the user saved a later version, or deleted the file
            else:
                self._swap_back(number, step)

    def _swap_back(self, number: int, step: Step) -> None:
        parent, place = self._hands.parent(step.path)
        try:
            rename_exchange(self._new, str(number), parent, place)
            if not self._is_ours(self._new, str(number), number):  # race: the user just saved; the latest stays
                rename_exchange(self._new, str(number), parent, place)
                self._keep(self._new, number, step)
        except FileNotFoundError:
            self._keep(self._new, number, step)

    def _put_back(self, fd: int, number: int, step: Step) -> None:
        try:
            _move(fd, str(number), *self._hands.parent(step.path))
        except (FileExistsError, FileNotFoundError, NotADirectoryError):
            self._keep(fd, number, step)

    # -- versions that the user saved during the apply -----------------------------------------------------------------

    def _has(self, fd: int, number: int) -> bool:
        return _find(fd, str(number)) is not None

    def _is_ours(self, fd: int, name: str, number: int) -> bool:
        """Return whether a name is the file that we built, with no writes since."""
        status = _find(fd, name)
        return status is not None and _mark(status) == self._journal.built[number]

    def _is_ours_at(self, path: str, number: int) -> bool:
        try:
            return self._is_ours(*self._hands.parent(path), number)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _look_through(self) -> None:
        """Preserve staged files that are neither ours nor the plan's version, or that are still open for writing."""
        for number, step in enumerate(self._steps):
            for fd in (self._new, self._old):
                status = _find(fd, str(number))
                if status is None:
                    continue
                known = _mark(status) == self._journal.built[number]
                known = known or self._seen.get((fd, number)) == _signature(status)
                known = known or fingerprint_at(fd, str(number)) == step.before
                if not known or _is_open_for_writing(fd, str(number)):
                    self._keep(fd, number, step)

    def _keep(self, fd: int, number: int, step: Step) -> None:
        """Move a version of the user to `aw-kept-RANDOM/`, where the user finds it."""
        hands = Hands(self._aside, self._owner)
        try:
            parts = ["kept", *step.path.split("/")]
            for level in range(1, len(parts)):
                hands.make_folder("/".join(parts[:level]))
            parent, name = hands.parent("/".join(parts))
            for suffix in ("", *(f"~{count}" for count in range(2, 100))):
                with suppress(FileExistsError):
                    _move(fd, str(number), parent, name + suffix)
                    return
        finally:
            hands.close()

    @property
    def _kept_name(self) -> str:
        return KEPT + self._journal.aside.removeprefix(PREFIX)

    def _kept(self) -> tuple[str, ...]:
        found = []
        with suppress(FileNotFoundError):
            for where, _, names, _ in os.fwalk(self._kept_name, dir_fd=self._folder, follow_symlinks=False):
                found += [f"{where}/{name}" for name in names]
        return tuple(sorted(found))

    def _clean(self) -> None:
        """Remove the staging directory. Versions that the user saved were moved out before."""
        if self._old >= 0 and self._journal.state != "building":
            self._look_through()
            with suppress(FileNotFoundError):
                _move(self._aside, "kept", self._folder, self._kept_name)
        with suppress(FileNotFoundError):
            remove_folder(self._folder, self._journal.aside)


def _move(source: int, name: str, folder: int, new_name: str) -> None:
    """Rename without replacing; raise FileExistsError if the name is taken."""
    try:
        rename_no_replace(source, name, folder, new_name)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        if _find(folder, new_name) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=folder)


def _find(fd: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _mark(status: os.stat_result) -> Mark:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode & MODE_BITS


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return (*_mark(status), status.st_ctime_ns)


def _is_open_for_writing(fd: int, name: str) -> bool:
    """Return whether a process has the file open for writing; False where the file system cannot tell."""
    try:
        file = os.open(name, OPEN_FILE, dir_fd=fd)
    except OSError:
        return False
    try:
        # The kernel grants a read lease only while no process has the file open for writing. If a process opens it
        # during the lease, the lease-break signal is SIGURG, which is ignored by default, instead of SIGIO, which kills
        # the process.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    finally:
        os.close(file)
    return False


def _place_of(fd: int) -> tuple[os.stat_result, bytes]:
    return os.fstat(fd), _get_xattr(fd, _DEFAULT_ACL)


def _get_xattr(where: int | str, key: str) -> bytes:
    try:
        return os.getxattr(where, key, follow_symlinks=isinstance(where, int))
    except OSError:
        return b""


def _copy_xattrs(old: str, fd: int, *, keeps_group: bool) -> bool:
    """Copy the xattrs of the replaced file to the new one, its ACL included; return whether it has an ACL."""
    try:
        keys = os.listxattr(old, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOENT):
            return False
        raise
    for key in keys:
        if key.startswith("user.") and not key.startswith("user.overlay."):
            os.setxattr(fd, key, os.getxattr(old, key, follow_symlinks=False))
        elif key.startswith("security.") and key not in _OF_CONTENT:
            with suppress(PermissionError):  # a security label that only the system may set
                os.setxattr(fd, key, os.getxattr(old, key, follow_symlinks=False))
    if _ACCESS_ACL not in keys:
        return False
    acl = os.getxattr(old, _ACCESS_ACL, follow_symlinks=False)
    os.setxattr(fd, _ACCESS_ACL, acl if keeps_group else _narrowed(acl))
    return True


def _narrowed(acl: bytes) -> bytes:
    """Return the ACL with group and others reduced to their common permissions: the group of the file has changed."""
    data = bytearray(acl)
    places = {int.from_bytes(data[at : at + 2], "little"): at + 2 for at in range(4, len(data), 8)}
    shared = data[places[_ACL_GROUP]] & data[places[_ACL_OTHER]]
    data[places[_ACL_GROUP]] = data[places[_ACL_OTHER]] = shared
    return bytes(data)

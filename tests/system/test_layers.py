"""Stacks, overlays over them, and what happens when the world interferes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from needs import need, need_program, need_root
from sources.yard import (
    AGENT,
    ORDINARY,
    Desk,
    Yard,
    as_agent,
    listing,
    mounts_in,
    ordinary_python,
    random_tree,
    sh,
    upset,
    yard_fixture,
)
from workstead import sources
from workstead.errors import FolderNotFound, Unavailable, WorkspaceBusy
from workstead.system.overlay import copying, layers, stack

yard = yard_fixture


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


@pytest.fixture
def desk(yard: Yard) -> Desk:
    """An overlay of a small folder of root's that nobody else may read."""
    need_root()
    folder = yard.folder()
    os.makedirs(f"{folder}/sub/deep")
    _write(f"{folder}/file", "one")
    _write(f"{folder}/sub/other", "two")
    os.chmod(f"{folder}/file", 0o600)
    os.chmod(folder, 0o700)
    return yard.create(f"overlay:{folder}")


# -- one workspace -----------------------------------------------------------------------------------------------------


def test_the_agent_owns_what_it_sees_and_the_origin_does_not_change(yard: Yard, desk: Desk) -> None:
    before = listing(f"{yard.directory}/origin")
    assert as_agent(desk, "cat file && echo more >> file && rm -r sub && touch new && stat -c %u file .") == (
        f"one{AGENT}\n{AGENT}\n"
    )
    assert listing(f"{yard.directory}/origin") == before
    assert sorted(os.listdir(desk.path)) == ["file", "new"]


def test_the_upper_layer_holds_only_whole_files_whiteouts_and_opaque_marks(desk: Desk) -> None:
    assert os.listdir(desk.upper) == []
    as_agent(desk, "chmod 644 file; rm sub/other; mv sub moved; mkdir sub; touch sub/fresh")
    status = os.lstat(f"{desk.upper}/file")
    assert _read(f"{desk.upper}/file") == "one"  # no metacopy: a chmod brings the bytes along
    assert os.listxattr(f"{desk.upper}/sub") == ["trusted.overlay.opaque"]
    assert os.listdir(f"{desk.upper}/moved") == ["deep"]  # no redirect: mv copied
    assert not any("redirect" in name or "metacopy" in name for name in os.listxattr(f"{desk.upper}/moved"))
    assert status.st_uid == AGENT
    as_agent(desk, "rm -r sub")
    assert copying.is_whiteout(os.lstat(f"{desk.upper}/sub"))


def test_renaming_a_directory_from_below_says_so_and_mv_manages(desk: Desk) -> None:
    with pytest.raises(OSError, match="cross-device"):
        os.rename(f"{desk.path}/sub", f"{desk.path}/elsewhere")
    as_agent(desk, "mv sub elsewhere")
    assert _read(f"{desk.path}/elsewhere/other") == "two"


def test_set_uid_programs_and_devices_do_not_work_in_a_workspace(desk: Desk) -> None:
    options = next(line for line in _read("/proc/self/mounts").splitlines() if desk.place.root in line).split()[3]
    assert {"nosuid", "nodev"} <= set(options.split(","))


# -- healing -----------------------------------------------------------------------------------------------------------


def test_attach_does_nothing_where_it_is_mounted(desk: Desk) -> None:
    for _ in range(3):
        sources.attach(desk.filled, desk.place)
    assert len(mounts_in(desk.place.root)) == 1


@pytest.mark.parametrize("how", ["umount", "umount -l"])
def test_a_stray_unmount_is_healed_by_the_next_use(desk: Desk, how: str) -> None:
    as_agent(desk, "echo changed > file")
    subprocess.run([*how.split(), desk.path], check=True)
    assert os.listdir(desk.path) == []
    sources.attach(desk.filled, desk.place)
    assert _read(f"{desk.path}/file") == "changed\n"


def test_after_a_reboot_everything_is_mounted_again(yard: Yard, desk: Desk) -> None:
    fork = yard.fork(desk)
    as_agent(fork, "echo forked > file")
    for each in (desk, fork):
        subprocess.run(["umount", each.path], check=True)
        mark = f"{each.place.layers}/mounted"
        os.unlink(mark)
        os.symlink("another-boot 1", mark)
        sources.attach(each.filled, each.place)
    assert (_read(f"{desk.path}/file"), _read(f"{fork.path}/file")) == ("one", "forked\n")


def test_a_stack_file_lost_in_a_power_failure_is_rebuilt_from_the_record(desk: Desk) -> None:
    as_agent(desk, "echo changed > file")
    sources.detach(desk.filled, desk.place)
    for content in (None, b""):
        os.unlink(f"{desk.place.layers}/stack")
        if content is not None:
            _write(f"{desk.place.layers}/stack", "")
        sources.attach(desk.filled, desk.place)
        assert _read(f"{desk.path}/file") == "changed\n"
        sources.detach(desk.filled, desk.place)


def test_what_is_unmounted_under_a_process_is_not_mounted_twice(desk: Desk) -> None:
    with _at_work(desk.path) as process:
        assert sources.detach(desk.filled, desk.place) is False
        assert mounts_in(desk.place.root) == []
        with pytest.raises(WorkspaceBusy) as caught:
            sources.attach(desk.filled, desk.place)
        assert caught.value.details["processes"] == [process.pid]
        assert sources.detach(desk.filled, desk.place) is True  # there is nothing left to unmount
        with pytest.raises(WorkspaceBusy):
            sources.attach(desk.filled, desk.place)
    sources.attach(desk.filled, desk.place)
    assert _read(f"{desk.path}/file") == "one"


def test_a_busy_workspace_can_be_unmounted_and_removed(yard: Yard, desk: Desk) -> None:
    with _at_work(desk.path):
        yard.release(desk)
        assert not os.path.exists(desk.place.layers)
        assert mounts_in(yard.directory) == []
        os.rename(desk.place.root, f"{yard.directory}/trash")


def test_a_workspace_moves_with_its_directory(yard: Yard, desk: Desk) -> None:
    as_agent(desk, "echo changed > file")
    assert sources.detach(desk.filled, desk.place) is True
    os.rename(desk.place.root, f"{yard.directory}/trash")
    os.rename(f"{yard.directory}/trash", desk.place.root)
    sources.attach(desk.filled, desk.place)
    assert _read(f"{desk.path}/file") == "changed\n"


def test_an_origin_that_is_gone_is_a_clear_error(yard: Yard, desk: Desk) -> None:
    sources.detach(desk.filled, desk.place)
    os.rename(f"{yard.directory}/origin", f"{yard.directory}/renamed")
    with pytest.raises(FolderNotFound, match="is gone"):
        sources.attach(desk.filled, desk.place)
    os.rename(f"{yard.directory}/renamed", f"{yard.directory}/origin")
    sources.attach(desk.filled, desk.place)
    assert _read(f"{desk.path}/file") == "one"


def test_of_many_who_attach_at_once_one_mounts(desk: Desk) -> None:
    for _ in range(5):
        sources.detach(desk.filled, desk.place)
        children = [_in_child(lambda: sources.attach(desk.filled, desk.place)) for _ in range(8)]
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
        assert len(mounts_in(desk.place.root)) == 1


@contextmanager
def _at_work(path: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"], cwd=path)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _in_child(work: Callable[[], object], *, kill_at: int = 0) -> int:
    """Do something in a forked child, killing it before its n-th step that changes the disk or the mounts."""
    child = os.fork()
    if child:
        return child
    try:
        if kill_at:
            _kill_before(kill_at)
        work()
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
    os._exit(1)


def _kill_before(step: int) -> None:
    from workstead.system.kernel import mounts

    left = step

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            nonlocal left
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return call

    for name in ("rename", "mkdir", "makedirs", "symlink", "unlink", "link", "mknod"):
        setattr(os, name, counted(getattr(os, name)))
    mounts.attach = counted(mounts.attach)  # type: ignore[assignment]
    mounts.unmount = counted(mounts.unmount)  # type: ignore[assignment]
    mounts.overlay = counted(mounts.overlay)  # type: ignore[assignment]


# -- forking -----------------------------------------------------------------------------------------------------------


def test_a_fork_has_everything_and_neither_sees_the_other_later(yard: Yard, desk: Desk) -> None:
    as_agent(desk, "echo mine > file; rm sub/other; echo ignored > .env")
    fork = yard.fork(desk)
    assert listing(fork.path) == listing(desk.path)
    assert os.listdir(fork.upper) == []
    as_agent(desk, "echo parent > file; rm .env")
    as_agent(fork, "echo child > file; touch sub/new; rm -r sub/deep")
    assert (_read(f"{desk.path}/file"), _read(f"{fork.path}/file")) == ("parent\n", "child\n")
    assert sorted(os.listdir(f"{desk.path}/sub")) == ["deep"]
    assert sorted(os.listdir(f"{fork.path}/sub")) == ["new"]
    assert os.path.exists(f"{fork.path}/.env")
    assert _read(f"{yard.directory}/origin/file") == "one"


def test_a_fork_of_a_workspace_at_work_takes_what_it_finds(yard: Yard, desk: Desk) -> None:
    as_agent(desk, "echo mine > file; rm sub/other; rm -r sub; mkdir sub; touch sub/fresh")
    with _at_work(desk.path):
        before = listing(desk.path)
        fork = yard.fork(desk)
        assert "in use" in fork.filled.notes[0]
        assert (
            listing(fork.path, times=False)
            == listing(desk.path, times=False)
            == {name: (*entry[:2], 0, entry[3]) for name, entry in before.items()}
        )
        as_agent(fork, "echo child > file")
        as_agent(desk, "echo parent > file")
        assert _read(f"{fork.path}/file") == "child\n"


def test_a_fork_sees_a_sandbox_that_still_has_the_mount(yard: Yard, desk: Desk) -> None:
    as_agent(desk, "echo mine > file")
    script = f"cd {desk.path} && echo && read x && echo late > file && echo"
    other = subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdin
    assert other.stdout
    try:
        other.stdout.readline()
        fork = yard.fork(desk)
        other.stdin.write(b"\n")
        other.stdin.flush()
        other.stdout.readline()
        assert _read(f"{fork.path}/file") == "mine\n"
        assert _read(f"{desk.path}/file") == "late\n"
    finally:
        other.communicate()


def test_a_parent_that_changed_nothing_is_not_touched_by_many_forks(yard: Yard, desk: Desk) -> None:
    as_agent(desk, "echo mine > file")
    yard.fork(desk)
    layers_before = list(desk.filled.layers)
    with _at_work(desk.path):  # even at work: there is nothing to freeze
        for fork in [yard.fork(desk) for _ in range(10)]:
            assert fork.filled.layers == layers_before
            assert fork.filled.notes == []


def test_forks_of_forks_to_depth_sixty_keep_every_change(yard: Yard, desk: Desk) -> None:
    current = desk
    for number in range(60):
        as_agent(current, f"echo {number} > file; touch n{number}; rm -f n{number - 2}; mkdir -p d; rm -rf d; mkdir d")
        current = yard.fork(current)
    assert len(current.filled.layers) <= 50  # squashed on the way
    assert _read(f"{current.path}/file") == "59\n"
    assert sorted(os.listdir(current.path)) == ["d", "file", "n58", "n59", "sub"]
    assert sorted(os.listdir(desk.path)) == ["d", "file", "n0", "sub"]
    yard.sweep()  # what was squashed may go, what is needed stays
    sources.detach(current.filled, current.place)
    sources.attach(current.filled, current.place)
    assert _read(f"{current.path}/file") == "59\n"


def test_an_empty_workspace_that_grew_is_forked_without_copying(yard: Yard) -> None:
    need_root()
    parent = yard.create("empty")
    as_agent(parent, "mkdir a && echo x > a/b")
    inode = os.stat(f"{parent.path}/a/b").st_ino
    fork = yard.fork(parent)
    assert (parent.filled.mechanism, fork.filled.mechanism) == ("overlay", "overlay")
    assert os.stat(f"{fork.path}/a/b").st_ino == inode
    as_agent(parent, "echo parent > a/b")
    as_agent(fork, "rm -r a")
    assert _read(f"{parent.path}/a/b") == "parent\n"


def test_an_empty_workspace_with_somebody_in_it_is_copied_when_forked(yard: Yard) -> None:
    parent = yard.create("empty")
    as_agent(parent, "mkdir a && echo x > a/b")
    with _at_work(f"{parent.path}/a"):
        fork = yard.fork(parent)
    assert parent.filled.mechanism == "plain"
    assert fork.filled.mechanism in ("copy", "reflink")
    assert listing(fork.path) == listing(parent.path)


def test_frozen_layers_go_when_nothing_needs_them(yard: Yard, desk: Desk) -> None:
    as_agent(desk, "echo mine > file")
    first = yard.fork(desk)
    as_agent(first, "echo second > file")
    second = yard.fork(first)
    assert yard.sweep() == []
    yard.release(first)
    yard.release(desk)
    assert yard.sweep() == []
    assert _read(f"{second.path}/file") == "second\n"
    used = set(second.filled.layers)
    yard.release(second)
    assert set(yard.sweep()) == {path for path in used if "/frozen/" in path}
    assert os.listdir(f"{yard.private}/frozen") == []


@pytest.mark.parametrize("busy", [False, True])
def test_a_kill_at_any_point_of_a_fork_loses_nothing(yard: Yard, desk: Desk, busy: bool) -> None:
    as_agent(desk, "echo mine > file; rm sub/other")
    expected = listing(desk.path, times=False)
    inside = os.open(desk.path, os.O_PATH) if busy else -1
    done = False
    for step in range(1, 600):
        place = yard.place()
        child = _in_child(lambda place=place: _fork_only(yard, desk, place), kill_at=step)  # type: ignore[misc]
        status = os.waitpid(child, 0)[1]
        sources.attach(desk.filled, desk.place)
        assert len(mounts_in(desk.place.root)) == 1
        assert listing(desk.path, times=False) == expected, f"after a kill before step {step}"
        _write(f"{desk.path}/file", "mine\n")  # and it can go on
        done = os.waitstatus_to_exitcode(status) == 0
        for path in mounts_in(place.root):
            subprocess.run(["umount", "-l", path], check=True)
        for path in (place.layers, place.root, f"{yard.private}/staging/{place.uid}"):
            copying.remove_tree(path)  # as repair clears away what was not finished
        if done:
            break
    assert done
    if inside >= 0:
        os.close(inside)
    yard.sweep()
    needed = {path for path in stack.stack_of(desk.filled, desk.place).lowers if "/frozen/" in path}
    assert {f"{yard.private}/frozen/{name}" for name in os.listdir(f"{yard.private}/frozen")} == needed


def test_a_kill_at_any_point_of_the_first_fork_of_plain_files_loses_nothing(yard: Yard) -> None:
    need_root()
    for step in range(1, 80):
        parent = yard.create("empty")
        as_agent(parent, "mkdir a && echo x > a/b")
        expected = listing(parent.path)
        place = yard.place()
        child = _in_child(lambda p=parent, q=place: _fork_only(yard, p, q), kill_at=step)  # type: ignore[misc]
        status = os.waitpid(child, 0)[1]
        sources.attach(parent.filled, parent.place)  # with the record from before
        assert listing(parent.path) == expected, f"after a kill before step {step}"
        as_agent(parent, "echo y > a/b")
        fork = yard.fork(parent)
        assert _read(f"{fork.path}/a/b") == "y\n"
        if os.waitstatus_to_exitcode(status) == 0:
            return
    pytest.fail("it never came to an end")


def _fork_only(yard: Yard, desk: Desk, place: object) -> None:
    yard.place = lambda name="": place  # type: ignore[method-assign,assignment]
    yard.fork(desk)


def test_a_kill_at_any_point_of_a_create_leaves_only_what_repair_clears(yard: Yard) -> None:
    need_root()
    folder = yard.folder()
    sh("git init -q . && touch x && git add -A && git commit -qm x && mkdir left && echo left > .awignore", folder)
    before = listing(folder)
    for step in range(1, 80):
        place = yard.place()

        def create(place: object = place) -> None:
            yard.place = lambda name="": place  # type: ignore[method-assign,assignment]
            yard.create(f"overlay:{folder}")

        status = os.waitpid(_in_child(create, kill_at=step), 0)[1]
        for path in mounts_in(place.root):
            subprocess.run(["umount", path], check=True)
        assert mounts_in(yard.directory) == []
        for path in (place.layers, place.root, f"{yard.private}/staging/{place.uid}"):
            copying.remove_tree(path)
        yard.sweep()
        if os.path.isdir(f"{yard.private}/frozen"):
            assert os.listdir(f"{yard.private}/frozen") == []
        if os.waitstatus_to_exitcode(status) == 0:
            break
    else:
        pytest.fail("it never came to an end")
    assert listing(folder) == before


# -- many --------------------------------------------------------------------------------------------------------------


def test_a_thousand_live_workspaces(yard: Yard, desk: Desk) -> None:
    as_agent(desk, "echo mine > file")
    forks = [yard.fork(desk) for _ in range(1000)]
    for number in (0, 500, 999):
        as_agent(forks[number], f"echo {number} > file")
    assert [_read(f"{forks[number].path}/file") for number in (0, 1, 500, 999)] == ["0\n", "mine\n", "500\n", "999\n"]
    sizes = sh(f"du -sk {yard.private}/layers | cut -f1", "/")
    assert int(sizes) < 100 * 1000  # under a tenth of what a megabyte each would be


# -- mechanisms --------------------------------------------------------------------------------------------------------


def test_the_probe_agrees_with_what_happens(yard: Yard) -> None:
    folder = yard.folder()
    _write(f"{folder}/file", "x")
    for mechanism, able, reason in layers.probe(yard.workspaces):
        if able:
            made = yard.create(f"overlay:{folder}", mechanism=mechanism)
            assert made.filled.mechanism == mechanism
            assert _read(f"{made.path}/file") == "x"
        else:
            assert reason
            with pytest.raises(Unavailable):
                yard.create(f"overlay:{folder}", mechanism=mechanism)
    assert os.listdir(yard.workspaces) == [".carrel"] or ".trial" not in "".join(os.listdir(yard.workspaces))


def test_an_unknown_mechanism_is_refused(yard: Yard) -> None:
    with pytest.raises(Unavailable, match="no mechanism"):
        yard.create(f"overlay:{yard.folder()}", mechanism="magic")


def test_a_home_on_an_overlay_falls_to_the_next_mechanism_and_says_so(yard: Yard) -> None:
    need_root()
    from workstead.system.kernel import mounts

    lower, upper, work, point = (yard.folder(name) for name in ("lower", "upper", "aside", "container"))
    _write(f"{lower}/x", "x")
    mount = mounts.overlay([mounts.Lower(lower)], upper=upper, work=work, options={}, scratch="/nonexistent")
    mounts.attach(mount, point)
    os.close(mount)
    inner = Yard(f"{point}/yard")
    folder = inner.folder()
    _write(f"{folder}/file", "x")
    try:
        made = inner.create(f"overlay:{folder}")
        assert made.filled.mechanism == "copy"
        assert any("overlay" in note and "because" in note for note in made.filled.notes)
        assert as_agent(made, "cat file") == "x"
        with pytest.raises(Unavailable, match="overlay"):
            inner.create(f"overlay:{folder}", mechanism="overlay")
        fork = inner.fork(made)
        assert listing(fork.path) == listing(made.path)
    finally:
        inner.close()
        mounts.unmount(point)


def test_where_owners_cannot_be_mapped_the_files_are_copied_and_that_is_said(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_root()
    from workstead.system.kernel import mounts

    def refuse(path: str, userns: int) -> int:
        raise OSError(22, "this file system cannot map owners")

    monkeypatch.setattr(mounts, "idmapped", refuse)
    folder = yard.folder()
    _write(f"{folder}/file", "x")
    os.chmod(f"{folder}/file", 0o600)
    made = yard.create(f"overlay:{folder}")
    assert made.filled.mechanism == "copy"
    assert any("map owners" in note for note in made.filled.notes)
    assert as_agent(made, "cat file && stat -c %u file") == f"x{AGENT}\n"


def test_an_old_kernel_is_served_too(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    need_root()
    from workstead.system.kernel import mounts

    modern = mounts.overlay
    monkeypatch.setattr(mounts, "overlay", lambda *given, **named: modern(*given, **{**named, "modern": False}))
    folder = yard.folder()
    _write(f"{folder}/file", "x")
    made = yard.create(f"overlay:{folder}")
    as_agent(made, "echo y > file")
    fork = yard.fork(made)
    assert made.filled.mechanism == "overlay"
    assert _read(f"{fork.path}/file") == "y\n"
    assert sorted(mounts_in(yard.directory)) == sorted([made.path, fork.path])


@pytest.fixture(params=["xfs", "btrfs"])
def sharing_yard(request: pytest.FixtureRequest, yard: Yard) -> Iterator[Yard]:
    """A yard on a file system that can share blocks."""
    need_root()
    make = need_program(f"mkfs.{request.param}")
    image, point = f"{yard.directory}/image", yard.folder("disk")
    with open(image, "wb") as file:
        file.truncate(400 << 20)
    subprocess.run([make, "-q", image], check=True)
    need(
        subprocess.run(["mount", "-o", "loop", image, point], check=False).returncode == 0,
        f"{request.param} and loop devices",
    )
    os.chmod(point, 0o755)
    inner = Yard(f"{point}/yard")
    try:
        yield inner
    finally:
        inner.close()
        subprocess.run(["umount", "-l", point], check=True)


def test_reflinks_share_blocks_and_nothing_else(sharing_yard: Yard) -> None:
    folder = sharing_yard.folder()
    random_tree(folder, 3)
    _write(f"{folder}/big", "x" * 20_000_000)
    subprocess.run(["sync", "-f", folder], check=True)  # what is written later is not counted as taken yet
    free = os.statvfs(folder).f_bfree * 4096
    made = sharing_yard.create(f"overlay:{folder}", mechanism="reflink")
    assert free - os.statvfs(folder).f_bfree * 4096 < 10_000_000
    assert listing(made.path, skip=(".git/config",)) == listing(folder, skip=(".git/config",))
    before = listing(folder)
    fork = sharing_yard.fork(made, mechanism="reflink")
    upset(fork.path, 1)
    upset(made.path, 2)
    assert listing(folder) == before
    assert os.stat(f"{made.path}/big" if os.path.exists(f"{made.path}/big") else made.path).st_uid == AGENT


def test_btrfs_snapshots(sharing_yard: Yard) -> None:
    probed = {name: able for name, able, _ in layers.probe(sharing_yard.workspaces)}
    assert probed["reflink"]
    if not probed["btrfs"]:
        return  # xfs
    folder = f"{sharing_yard.directory}/volume"
    copying.btrfs_subvolume(folder)
    random_tree(folder, 5)
    before = listing(folder)
    made = sharing_yard.create(f"overlay:{folder}", mechanism="btrfs")
    assert listing(made.path, skip=(".git/config",)) == listing(folder, skip=(".git/config",))
    fork = sharing_yard.fork(made)
    assert fork.filled.mechanism == "btrfs"
    assert copying.is_subvolume(fork.path)
    assert listing(fork.path) == listing(made.path)
    upset(fork.path, 1)
    assert listing(folder) == before
    plain = sharing_yard.folder("no volume")
    random_tree(plain, 6)
    assert sharing_yard.create(f"overlay:{plain}", mechanism="btrfs").filled.mechanism == "btrfs"


# -- rootless ----------------------------------------------------------------------------------------------------------


def test_an_ordinary_user_gets_the_same_through_a_holder(yard: Yard) -> None:
    """The story runs as another user in a process of its own; see rootless_story.py beside the sources' tests."""
    python = ordinary_python()
    need(python is not None, "a Python 3.11 that an ordinary user can start")
    story = os.path.join(os.path.dirname(__file__), "..", "sources", "rootless_story.py")
    directory = yard.folder("ordinary")
    prefix: list[str] = []
    if os.geteuid() == 0:
        os.chown(directory, ORDINARY, ORDINARY)
        prefix = ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups"]
    site = os.path.dirname(os.path.dirname(pytest.__file__))
    paths = [
        os.path.join(os.path.dirname(__file__), "..", "..", "src"),
        os.path.join(os.path.dirname(__file__), ".."),
        site,
    ]
    done = subprocess.run(
        [*prefix, str(python), "-B", story, directory],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(paths), "HOME": directory},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 77), done.stdout + done.stderr
    need(done.returncode == 0, f"user namespaces for ordinary users ({done.stdout.strip()})")
    assert done.stdout.strip().endswith("ok")
    assert not _processes_below(directory)


def _processes_below(directory: str) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/cmdline") as file:
                text = file.read()
        except OSError:
            continue
        if "mount_daemon.py" in text and directory in text:
            found.append(text)
    return found

"""A file that is given back has the rights of the one that it replaces: owner, group, ACL and extended attributes."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from people import Person

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
USER, NAMED_USER, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
SOMEBODY = 54321
NOBODY = 0xFFFFFFFF


def acl(*, user: int, named: int, group: int, mask: int, other: int) -> bytes:
    """An ACL that gives one other user rights of their own."""
    entries = [(USER, user, NOBODY), (NAMED_USER, named, SOMEBODY), (GROUP, group, NOBODY), (MASK, mask, NOBODY)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *each) for each in (*entries, (OTHER, other, NOBODY)))


def rights(path: Path) -> tuple[int, int, int, bytes, bytes]:
    found = os.stat(path)
    names = os.listxattr(path)
    return (
        found.st_mode & 0o7777,
        found.st_uid,
        found.st_gid,
        os.getxattr(path, ACCESS) if ACCESS in names else b"",
        os.getxattr(path, "user.note") if "user.note" in names else b"",
    )


def test_a_replaced_file_keeps_its_acl_and_attributes(person: Person) -> None:
    folder = person.folder("p", {"a": "1\n", "b": "1\n"})
    # Without its ACL the group would have rw, which here is only the mask.
    os.setxattr(folder / "a", ACCESS, acl(user=6, named=6, group=0, mask=6, other=0))
    os.setxattr(folder / "a", "user.note", b"of the user")
    before = rights(folder / "a")
    assert before[0] == 0o660
    assert before[3]
    person.aw_ok("run", "--id", "c1/a", "--source", str(folder), "--", "sh", "-c", "echo 2 > a; echo 2 > b; echo 2 > c")
    person.aw_ok("apply", "c1/a")
    assert (folder / "a").read_text() == "2\n"
    assert rights(folder / "a") == before
    assert not rights(folder / "b")[3]
    person.aw_ok("undo")
    assert (folder / "a").read_text() == "1\n"
    assert rights(folder / "a") == before
    # The twin: a file that is written beside and renamed has none of it.
    person.sh("cp a new && mv new a", cwd=folder)
    assert not rights(folder / "a")[3]
    assert not rights(folder / "a")[4]


def test_a_group_that_cannot_be_kept_gets_no_more_than_it_had(person: Person) -> None:
    folder = person.folder("p", {"a": "1\n", "b": "1\n", "c": "1\n", "d": "1\n"})
    foreign = 76543
    for name, mode in {"a": 0o660, "b": 0o664, "c": 0o604, "d": 0o640}.items():
        os.chown(folder / name, person.uid, foreign)
        os.chmod(folder / name, mode)
    os.setxattr(folder / "d", ACCESS, acl(user=6, named=6, group=4, mask=6, other=0))
    before = {name: rights(folder / name) for name in "abcd"}
    # Made anew: an overlay cannot copy up a file of a group that its user namespace does not know.
    script = "for f in a b c d; do m=$(stat -c %a $f) && rm $f && echo 2 > $f && chmod $m $f; done"
    person.aw_ok("run", "--id", "c1/a", "--source", str(folder), "--", "sh", "-ec", script)
    person.aw_ok("apply", "c1/a")
    after = {name: rights(folder / name) for name in "abcd"}
    if person.is_root:
        assert after == before
    else:
        assert [after[name][2] for name in "abcd"] == [person.uid] * 4
        assert [oct(after[name][0]) for name in "abc"] == ["0o600", "0o644", "0o600"]
        assert after["d"][3] == acl(user=6, named=6, group=0, mask=6, other=0)
    # What was put there is what an undo finds, whatever its mode became.
    person.aw_ok("undo")
    assert [(folder / name).read_text() for name in "abcd"] == ["1\n"] * 4
    # The twin: the same mode with the new group.
    person.sh("cp a new && chmod 660 new && mv new a", cwd=folder)
    assert (rights(folder / "a")[0], rights(folder / "a")[2]) == (0o660, person.uid)


def test_capabilities_do_not_pass_to_what_the_agent_wrote(person: Person) -> None:
    folder = person.folder("p", {"tool": "1\n"})
    capability = struct.pack("<IIIII", 0x02000001, 1 << 21, 0, 0, 0)  # CAP_SYS_ADMIN
    os.setxattr(folder / "tool", "security.capability", capability)
    person.aw_ok("run", "--id", "c1/a", "--source", str(folder), "--", "sh", "-c", "rm tool; echo 2 > tool")
    person.aw_ok("apply", "c1/a")
    assert (folder / "tool").read_text() == "2\n"
    assert "security.capability" not in os.listxattr(folder / "tool")


def test_a_new_file_gets_the_default_acl_of_its_own_directory(person: Person) -> None:
    folder = person.folder("p", {"open/x": "1\n", "closed/x": "1\n"})
    os.setxattr(folder, DEFAULT, acl(user=7, named=7, group=7, mask=7, other=7))
    os.setxattr(folder / "closed", DEFAULT, acl(user=7, named=0, group=0, mask=0, other=0))
    script = "umask 0; for d in open closed; do echo 2 > $d/f; mkdir $d/n; echo 2 > $d/n/f; done"
    person.aw_ok("run", "--id", "c1/a", "--source", str(folder), "--", "sh", "-c", script)
    person.aw_ok("apply", "c1/a")
    for path in ("closed/f", "closed/n/f", "closed/n"):
        assert rights(folder / path)[0] & 0o077 == 0, path
    for path in ("open/f", "open/n/f"):
        assert rights(folder / path)[0] & 0o006 == 0o006, path
        assert rights(folder / path)[3] == b"", path
    person.aw_ok("undo")
    assert sorted(os.listdir(folder / "closed")) == ["x"]

"""Archives that want to do harm do nothing: each is refused with its own code, and nothing is left behind.

The twins at the end show that the harm is real: what unpacks such archives without care does it.
"""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from backports import zstd

import workstead
from archives.forge import Forge, folder, foreign, link, patched, plain
from situations import check_whole, names_in
from workstead.archives import headers
from workstead.archives.read import Nowhere, Reader
from workstead.archives.trees import Caps
from workstead.errors import ArchiveTooLarge, WorksteadError
from workstead.local import Local
from workstead.settings import Settings
from workstead.snapshots.entries import DIR, FILE, LINK, NO_DIGEST, WHITEOUT, Entry, encode_entry, encode_tree, flags

Change = Callable[[Forge], None]
SECRET = "not yours"


@pytest.fixture
def honest(workspaces: Local, tmp_path: Path) -> str:
    """An archive of a small workspace with two states."""
    desk = workspaces.create(id="fix/a")
    work = Path(desk.path, "work")
    (work / "d").mkdir()
    (work / "d" / "x").write_text("x")
    (work / "a").write_text("a")
    workspaces.snapshot("fix/a", label="one")
    (work / "a").write_text("b")
    workspaces.write_file("fix/a", "work/z", "z")
    (tmp_path / "victim").write_text(SECRET)
    return workspaces.archive("fix/a", str(tmp_path / "honest.aw.tar.zst")).path


def after(name: str, *parts: tuple[bytes, bytes, bytes]) -> Change:
    return lambda forge: forge.after(name, *parts)


def beside(*parts: tuple[bytes, bytes, bytes]) -> Change:
    """Something more in `work`, where the name `b` belongs."""
    return after("work/a", *parts)


def with_object(data: bytes, kind: str = "trees") -> Change:
    """Another object, and a state that is it."""

    def change(forge: Forge) -> None:
        digest = sha256(data).hexdigest()
        forge.parts.append(plain(f"objects/{kind}/{digest}", data))
        forge.summary["base"] = digest

    return change


def tree(**entries: Entry) -> bytes:
    return encode_tree({name: encode_entry(name, entry) for name, entry in entries.items()})


def tree_bomb(forge: Forge) -> None:
    """Ten directories, each of which is the same one ten times, and so on: 10^12 files in a few kilobytes."""
    content = plain(f"objects/contents/{sha256(b'boom').hexdigest()}", b"boom")
    forge.parts.append(content)
    data = tree(**{f"f{number}": Entry(FILE, 0o644, 0, 4, sha256(b"boom").digest()) for number in range(10)})
    size = 40
    for _ in range(11):
        forge.parts.append(plain(f"objects/trees/{sha256(data).hexdigest()}", data))
        digest = sha256(data).digest()
        data = tree(**{f"d{number}": Entry(DIR, 0o755, 0, size, digest) for number in range(10)})
        size *= 10


def deep_states(forge: Forge) -> None:
    data = b""
    for _ in range(3010):
        digest = sha256(data).digest()
        if not any(digest.hex().encode() in part[0] for part in forge.parts[-2:]) and data:
            forge.parts.append(plain(f"objects/trees/{digest.hex()}", data))
        data = tree(d=Entry(DIR, 0o755, 0, 0, digest))


def edited_event(forge: Forge) -> None:
    data = forge.parts[forge.find("events.jsonl")][1].replace(b"work/z", b"work/q")
    forge.replace("events.jsonl", plain("events.jsonl", data))


def event_left_out(forge: Forge) -> None:
    lines = forge.parts[forge.find("events.jsonl")][1].splitlines(keepends=True)
    forge.replace("events.jsonl", plain("events.jsonl", b"".join([*lines[:3], *lines[4:]])))


def event_put_in(forge: Forge) -> None:
    data = forge.parts[forge.find("events.jsonl")][1]
    line = json.dumps([9, "workspace_created", "{}", "owner", "{}", "2026-01-01T00:00:00.000000Z"]).encode() + b"\n"
    forge.replace("events.jsonl", plain("events.jsonl", data + line))


def no_such_state(forge: Forge) -> None:
    forge.summary["states"][0]["root"] = "ab" * 32


def wrong_now(forge: Forge) -> None:
    forge.now = "empty"


def odd_state(forge: Forge) -> None:
    forge.summary["states"][0]["taken_at"] = float("1e300")


def states_of_nothing(forge: Forge) -> None:
    forge.summary["states"] = "none"


def other_content(forge: Forge) -> None:
    """The digests are those of the old content, as if a byte had flipped and nobody had sealed it again."""
    header, _, line = forge.parts[forge.find("work/z")]
    forge.parts[forge.find("work/z")] = (header, b"Z", line)


def without_events(forge: Forge) -> None:
    del forge.parts[forge.find("events.jsonl")]


def without_folder(forge: Forge) -> None:
    del forge.parts[forge.find("work/d")]


def version_three(forge: Forge) -> None:
    head = json.loads(forge.parts[0][1])
    forge.parts[0] = plain("archive.json", json.dumps({**head, "version": 3}).encode())


def out_of_order(forge: Forge) -> None:
    at = forge.find("work/a")
    forge.parts.append(forge.parts.pop(at))


def swapped_objects(forge: Forge) -> None:
    """A directory before what is in it."""
    first = forge.find("objects/")
    forge.parts[first:] = reversed(forge.parts[first:])


def many_pax_records(forge: Forge) -> None:
    body = b"".join(b"%d k%d=v\n" % (len(f"{number}") + 8, number) for number in range(10, 99))
    forge.after(
        "work/a",
        (
            headers._block(b"././@PaxHeader", 0o644, len(body), 0, b"x", b"")
            + body
            + headers.padding(len(body))
            + plain("work/b")[0],
            b"",
            b"",
        ),
    )


def huge_pax(size: int) -> Change:
    return beside((headers._block(b"././@PaxHeader", 0o644, size, 0, b"x", b""), b"", b"[]\n"))


SPARSE = plain("work/b", bytes(1 << 20), full_size=3 << 20, runs=((0, 0),))
LONG = "work/" + "n" * 256
BIG = plain("work/b", b"b")

BAD, DAMAGED, LARGE = "invalid_archive", "archive_damaged", "archive_too_large"
OUTSIDE = "symlink_outside_workspace"
A_LINK = Entry(LINK, 0o777, 0, 1, target="x")
TO_ETC = Entry(LINK, 0o777, 0, 4, target="/etc")
WITH_RIGHTS = Entry(LINK, 0o777, 0, 1, target="x", xattrs=((b"security.capability", b"x"),))
LOST = Entry(FILE, 0o644, 0, 5, b"x" * 32)

# name -> what is changed, and the code that refuses it
HOSTILE: dict[str, tuple[Change, str]] = {
    "an absolute name": (beside(plain("/etc/owned")), "absolute_path_not_allowed"),
    "a name that goes up": (beside(plain("work/../../victim")), "path_traversal_attempt"),
    "a name that is only up": (beside(plain("..")), "path_traversal_attempt"),
    "a name with a dot": (beside(plain("work/./b")), BAD),
    "a name with two slashes": (beside(plain("work//b")), BAD),
    "an empty name": (beside(plain("")), BAD),
    "a name with NUL": (beside(plain("work/b\0c" + "é")), "invalid_path_null_byte"),
    "a name that is too long": (beside(plain(LONG)), BAD),
    "a link to the root": (beside(link("work/b", "/etc")), OUTSIDE),
    "a link that goes up": (beside(link("work/b", "../../victim")), OUTSIDE),
    "a link through a name and up": (beside(link("work/b", "d/../../../victim")), OUTSIDE),
    "an empty link": (beside(link("work/b", "")), BAD),
    "a link, then a file below it": (
        beside(link("work/b", "../../victim"), plain("work/b/owned")),
        BAD,
    ),
    "a link, then a file in its place": (beside(link("work/b", "d/x"), plain("work/b")), BAD),
    "a hard link": (beside(foreign("work/b", tarfile.LNKTYPE, linkname="/etc/passwd")), BAD),
    "a device": (beside(foreign("work/b", tarfile.CHRTYPE, devmajor=1, devminor=3)), BAD),
    "a disk": (beside(foreign("work/b", tarfile.BLKTYPE, devmajor=8)), BAD),
    "a pipe": (beside(foreign("work/b", tarfile.FIFOTYPE)), BAD),
    "a set-uid program": (beside(plain("work/b", b"#!", mode=0o4755)), BAD),
    "an owner": (beside(foreign("work/b", uid=1000, uname="root")), BAD),
    "the same name twice": (beside(plain("work/a")), BAD),
    "the same directory twice": (after("work/d/x", folder("work/d")), BAD),
    "another order": (out_of_order, BAD),
    "a file without its directory": (without_folder, BAD),
    "a stranger beside work": (after("work/z", plain("work2")), BAD),
    "a .git beside work": (after(".aw/workspace_config.json", folder(".git"), plain(".git/config")), BAD),
    "a .GIT beside work": (after(".aw/workspace_config.json", plain(".GIT")), BAD),
    "a program in .aw": (after(".aw/run.json", plain(".aw/run.sh")), BAD),
    "another .AW": (after(".aw/workspace_config.json", folder(".AW")), BAD),
    "output as a link": (lambda forge: forge.replace("output", link("output", "work")), BAD),
    "output as a file": (lambda forge: forge.replace("output", plain("output")), BAD),
    ".aw as a link": (lambda forge: forge.replace(".aw", link(".aw", "work")), BAD),
    "a note that is a directory": (after(".aw/workspace_config.json", folder("CLAUDE.md")), BAD),
    "a size that is larger": (beside(patched(BIG, 124, b"%011o\0" % 5000)), BAD),
    "a size that is smaller": (
        beside(patched(plain("work/b", b"b" * 2000), 124, b"%011o\0" % 1)),
        BAD,
    ),
    "a size of 8 exabytes": (
        beside(patched(BIG, 124, b"\x80" + (1 << 62).to_bytes(11, "big"))),
        BAD,
    ),
    "a negative size": (beside(patched(BIG, 124, b"-0000000001\0")), BAD),
    "a negative size in base 256": (beside(patched(BIG, 124, b"\xff" * 12)), BAD),
    "a size in pax that is larger": (
        beside((headers.encode(headers.Member(kind="f", name="work/b", size=1 << 40)), b"", b"[]\n")),
        DAMAGED,
    ),
    "a GNU sparse file": (
        beside(foreign("work/b", tarfile.GNUTYPE_SPARSE, form=tarfile.GNU_FORMAT)),
        BAD,
    ),
    "a GNU long name": (beside(foreign("work/" + "b" * 120, form=tarfile.GNU_FORMAT)), BAD),
    "a pax sparse file": (
        beside(foreign("work/b", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.realsize": "9"})),
        BAD,
    ),
    "holes that make no sense": (
        beside(plain("work/b", b"b", full_size=9 << 20, runs=((7, 3),))),
        BAD,
    ),
    "holes beyond the end": (
        beside(plain("work/b", b"b", full_size=2 << 20, runs=((9, 9),))),
        BAD,
    ),
    "holes of exabytes": (beside(plain("work/b", b"", full_size=(1 << 63) - 1, runs=())), BAD),
    "a global header": (beside(foreign("work/b", tarfile.XGLTYPE)), BAD),
    "unknown pax records": (many_pax_records, BAD),
    "a pax record of attributes that give rights": (
        beside(foreign("work/b", pax_headers={"SCHILY.xattr.security.capability": "x"})),
        BAD,
    ),
    "a pax header of gigabytes": (huge_pax(4 << 30), LARGE),
    "a wrong checksum": (
        beside((BIG[0][:148] + b"000000\0 " + BIG[0][156:], b"b", b"[]\n")),
        BAD,
    ),
    "another content": (other_content, DAMAGED),
    "an edited event": (edited_event, DAMAGED),
    "an event left out": (event_left_out, DAMAGED),
    "an event put in": (event_put_in, DAMAGED),
    "no history": (without_events, BAD),
    "another format": (version_three, BAD),
    "a state that is not there": (no_such_state, BAD),
    "files that are another state": (wrong_now, DAMAGED),
    "a state at no time": (odd_state, BAD),
    "no states": (states_of_nothing, BAD),
    "objects before what they need": (swapped_objects, BAD),
    "an object of another name": (
        lambda forge: forge.parts.append(plain(f"objects/contents/{'0' * 64}", b"other")),
        DAMAGED,
    ),
    "an object of no kind": (lambda forge: forge.parts.append(plain("objects/x/y")), BAD),
    "a tree that unfolds for ever": (tree_bomb, LARGE),
    "a tree that is too deep": (deep_states, LARGE),
    "a tree of rubbish": (with_object(b"rubbish"), BAD),
    "a tree with a name that goes up": (
        with_object(tree(**{"..": A_LINK})),
        BAD,
    ),
    "a tree with a name that is a path": (
        with_object(tree(**{"a/b": A_LINK})),
        BAD,
    ),
    "a tree with a whiteout": (with_object(tree(work=Entry(WHITEOUT))), BAD),
    "a tree over a layer of the host": (
        with_object(tree(work=Entry(DIR, 0o755, 0, 0, sha256(b"").digest(), over="0" * 32))),
        BAD,
    ),
    "a tree with set-uid": (with_object(tree(work=Entry(DIR, 0o6755, 0, 0, sha256(b"").digest()))), BAD),
    "a tree with a link out": (
        with_object(tree(**{"CLAUDE.md": TO_ETC})),
        OUTSIDE,
    ),
    "a tree with rights in attributes": (
        with_object(tree(**{"CLAUDE.md": WITH_RIGHTS})),
        BAD,
    ),
    "a tree with content that is nowhere": (
        with_object(tree(**{"CLAUDE.md": LOST})),
        BAD,
    ),
    "a tree with a directory that is nowhere": (
        with_object(tree(work=Entry(DIR, 0o755, 0, 0, NO_DIGEST))),
        BAD,
    ),
    "a tree with an opaque directory": (
        with_object(tree(work=Entry(DIR, 0o755, 0, 0, sha256(b"").digest(), flags=flags(opaque=True)))),
        BAD,
    ),
    "a state with a stranger beside work": (
        with_object(tree(bin=A_LINK)),
        BAD,
    ),
    "pieces that are nowhere": (with_object((2 << 20).to_bytes(8, "big") + b"\0" * 40, "lists"), BAD),
    "something after the manifest": (lambda forge: None, BAD),
}


def refused(elsewhere: Local, path: Path) -> str:
    """Try it through every way in; all of them say the same."""
    with pytest.raises(WorksteadError) as caught:
        elsewhere.create(f"archive:{path}", id="new/a")
    return caught.value.code


@pytest.fixture
def elsewhere(tmp_path: Path, settings: Settings) -> Local:
    return workstead.open(str(tmp_path / "elsewhere"), settings=settings)


def check_nothing_happened(elsewhere: Local, tmp_path: Path) -> None:
    """No workspace, no building site, no object, no layer; the neighbours are as they were."""
    home = tmp_path / "elsewhere"
    assert elsewhere.list(all=True) == []
    assert (tmp_path / "victim").read_text() == SECRET
    assert names_in(home / "workspaces" / ".carrel" / "staging") == []
    assert names_in(home / "workspaces" / ".carrel" / "layers") == []
    assert names_in(home / "snapshots" / "packs") == []
    assert not os.path.exists("/etc/owned")
    assert elsewhere.repair() == []
    check_whole(elsewhere, home)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(
    name: str, honest: str, elsewhere: Local, tmp_path: Path
) -> None:
    change, code = HOSTILE[name]
    forge = Forge(honest)
    change(forge)
    more = plain("more")[0] if name == "something after the manifest" else b""
    path = forge.write(tmp_path / "hostile", lambda raw: raw[: -len(headers.END)] + more + headers.END)
    with elsewhere:
        assert refused(elsewhere, path) == code
        check_nothing_happened(elsewhere, tmp_path)
        if code != "symlink_outside_workspace":  # which verifying only names
            if name != "a state at no time":  # nor does it make anything of the states
                with pytest.raises(WorksteadError) as caught:
                    elsewhere.verify_archive(str(path))
                assert caught.value.code == code
        else:
            assert elsewhere.verify_archive(str(path)).outside


def test_what_the_forge_does_not_change_is_taken(honest: str, elsewhere: Local, tmp_path: Path) -> None:
    """Otherwise everything above would be refused for the forge's own mistakes."""
    path = Forge(honest).write(tmp_path / "again")
    with elsewhere:
        assert elsewhere.create(f"archive:{path}", id="new/a").state == "ready"
        assert elsewhere.read_text("new/a", "work/z") == "z"
        elsewhere.restore("new/a", "one")
        assert elsewhere.read_text("new/a", "work/a") == "a"


def test_an_archive_that_is_cut_anywhere_is_refused(honest: str, elsewhere: Local, tmp_path: Path) -> None:
    whole = Path(honest).read_bytes()
    raw = zstd.decompress(whole)
    with elsewhere:
        for end in [*range(0, len(whole), max(1, len(whole) // 40)), len(whole) - 1]:
            path = tmp_path / "cut"
            path.write_bytes(whole[:end])
            assert refused(elsewhere, path) == "archive_damaged", end
        for end in [*range(0, len(raw), 512 * 3), len(raw) - 512, len(raw) - 1]:  # cut before it was compressed
            path.write_bytes(zstd.compress(raw[:end]))
            assert refused(elsewhere, path) in ("archive_damaged", "invalid_archive"), end
        check_nothing_happened(elsewhere, tmp_path)


def test_an_archive_with_a_changed_byte_is_refused(honest: str, elsewhere: Local, tmp_path: Path) -> None:
    whole = bytearray(Path(honest).read_bytes())
    raw = bytearray(zstd.decompress(bytes(whole)))
    path = tmp_path / "changed"
    with elsewhere:
        for at in range(0, len(raw), 977):
            changed = raw.copy()
            changed[at] ^= 1
            path.write_bytes(zstd.compress(bytes(changed)))
            assert refused(elsewhere, path) in REASONS, at
        for at in range(0, len(whole), max(1, len(whole) // 50)):
            flipped = whole.copy()
            flipped[at] ^= 0x10
            path.write_bytes(flipped)
            if _unpacked(bytes(flipped)) == raw:
                continue  # a bit that the format does not use: not a byte of the archive has changed
            assert refused(elsewhere, path) in REASONS, at
        check_nothing_happened(elsewhere, tmp_path)


def _unpacked(compressed: bytes) -> bytes | None:
    try:
        return zstd.decompress(compressed)
    except zstd.ZstdError:
        return None


REASONS = (
    *("archive_damaged", "invalid_archive", "archive_too_large", "symlink_outside_workspace"),
    *("path_traversal_attempt", "absolute_path_not_allowed", "invalid_path_null_byte"),
)


def test_what_follows_the_end_is_refused(honest: str, elsewhere: Local, tmp_path: Path) -> None:
    whole = Path(honest).read_bytes()
    raw = zstd.decompress(whole)
    path = tmp_path / "long"
    with elsewhere:
        for content in (whole + b"x", whole + whole, whole + zstd.compress(b""), zstd.compress(raw + bytes(512))):
            path.write_bytes(content)
            assert refused(elsewhere, path) == "invalid_archive"
        check_nothing_happened(elsewhere, tmp_path)


def test_what_is_no_archive_is_refused(elsewhere: Local, tmp_path: Path, honest: str) -> None:
    path = tmp_path / "no-archive"
    with elsewhere:
        for content in (b"", b"hello", b"\x1f\x8b" + bytes(100), zstd.compress(b""), zstd.compress(b"hello" * 1000)):
            path.write_bytes(content)
            assert refused(elsewhere, path) in ("archive_damaged", "invalid_archive")
        path.write_bytes(zstd.decompress(Path(honest).read_bytes()))  # not compressed at all
        assert refused(elsewhere, path) == "archive_damaged"
        check_nothing_happened(elsewhere, tmp_path)


def test_a_bomb_is_stopped_by_its_ratio(honest: str, elsewhere: Local, tmp_path: Path) -> None:
    forge = Forge(honest)
    forge.after("work/a", plain("work/b", bytes(100 << 20)))
    path = forge.write(tmp_path / "bomb")
    assert path.stat().st_size < 50_000
    with elsewhere:
        assert refused(elsewhere, path) == "archive_too_large"
        check_nothing_happened(elsewhere, tmp_path)


def test_what_is_too_deep_is_refused(honest: str, tmp_path: Path) -> None:
    forge = Forge(honest)
    names = ["work/d/deep" + "/d" * depth for depth in range(3001)]
    forge.after("work/d", *map(folder, names))
    with pytest.raises(ArchiveTooLarge, match="3000 directories deep"):
        Reader([zstd.compress(forge.tar())], Caps(), Nowhere()).read()


def test_members_and_bytes_are_counted_while_reading(honest: str) -> None:
    raw = Path(honest).read_bytes()

    def read(**caps: int) -> None:
        Reader([raw], Caps(**caps), Nowhere()).read()

    read()
    for caps in ({"max_files": 5}, {"max_bytes": 9000}, {"max_depth": 1}):
        with pytest.raises(WorksteadError) as caught:
            read(**caps)
        assert caught.value.code == "archive_too_large"


def test_a_window_of_gigabytes_is_refused(honest: str, elsewhere: Local, tmp_path: Path) -> None:
    """The frame says how much memory its reader needs; a few bytes may say two gigabytes."""
    level = {zstd.CompressionParameter.window_log: 31, zstd.CompressionParameter.enable_long_distance_matching: 1}
    path = tmp_path / "wide"
    compressor = zstd.ZstdCompressor(options=level)
    path.write_bytes(compressor.compress(zstd.decompress(Path(honest).read_bytes())) + compressor.flush())
    with elsewhere:
        assert refused(elsewhere, path) == "archive_damaged"
        check_nothing_happened(elsewhere, tmp_path)


def test_an_archive_may_be_reached_by_a_link(honest: str, elsewhere: Local, tmp_path: Path) -> None:
    """The path is the owner's; only what is in the archive is a stranger's."""
    (tmp_path / "link").symlink_to(honest)
    with elsewhere:
        assert elsewhere.create(f"archive:{tmp_path}/link", id="new/a").state == "ready"


# -- twins: the harm is real -------------------------------------------------------------------------------------------


def careless(path: Path, into: Path) -> None:
    """What a careless extractor does, and `tarfile` did by itself for thirty years."""
    with zstd.open(path) as file, tarfile.open(fileobj=file, mode="r|") as tar:
        tar.extractall(into, filter="fully_trusted")


@pytest.mark.parametrize(
    ("parts", "harmed"),
    [
        ([plain("../victim", b"owned")], "victim"),
        ([plain("work/../../victim", b"owned")], "victim"),
        ([link("work/b", "../.."), plain("work/b/victim", b"owned")], "victim"),
        ([link("work/b", "../../victim"), plain("work/b", b"owned")], "victim"),
    ],
)
def test_a_careless_extractor_overwrites_the_victim(
    parts: list[tuple[bytes, bytes, bytes]], harmed: str, honest: str, tmp_path: Path, elsewhere: Local
) -> None:
    forge = Forge(honest)
    forge.after("work/a", *parts)
    path = forge.write(tmp_path / "hostile")
    with elsewhere:
        refused(elsewhere, path)
        check_nothing_happened(elsewhere, tmp_path)
    (tmp_path / "into").mkdir()
    careless(path, tmp_path / "into")
    assert (tmp_path / harmed).read_text() == "owned"


def test_a_careless_extractor_makes_set_uid_programs_and_pipes(honest: str, tmp_path: Path) -> None:
    forge = Forge(honest)
    forge.after("work/a", plain("work/b", b"#!", mode=0o4755), foreign("work/c", tarfile.FIFOTYPE))
    (tmp_path / "into").mkdir()
    careless(forge.write(tmp_path / "hostile"), tmp_path / "into")
    assert (tmp_path / "into" / "work" / "b").stat().st_mode & 0o4000
    assert (tmp_path / "into" / "work" / "c").is_fifo()


def test_a_careless_extractor_lets_the_last_of_two_win(honest: str, tmp_path: Path) -> None:
    forge = Forge(honest)
    forge.after("work/a", plain("work/a", b"the other one"))
    (tmp_path / "into").mkdir()
    careless(forge.write(tmp_path / "hostile"), tmp_path / "into")
    assert (tmp_path / "into" / "work" / "a").read_text() == "the other one"


def test_a_careless_extractor_unfolds_a_bomb(honest: str, tmp_path: Path) -> None:
    forge = Forge(honest)
    forge.after("work/a", plain("work/b", bytes(100 << 20)))
    (tmp_path / "into").mkdir()
    careless(forge.write(tmp_path / "hostile"), tmp_path / "into")
    assert (tmp_path / "into" / "work" / "b").stat().st_size == 100 << 20


def test_any_tar_unpacks_an_honest_one(honest: str, tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    subprocess.run(["tar", "--zstd", "-xf", honest, "-C", tmp_path / "into"], check=True)
    assert (tmp_path / "into" / "work" / "z").read_text() == "z"

"""Path cases as data: one tree, one call, one outcome. And the box they are tried in.

Every case starts from the same box:

    BOX/ws/                   the workspace root, with what the case puts there
    BOX/outside/secret.txt    "CANARY outside"
    BOX/outside/dir/deep.txt  "CANARY deep"
    BOX/ws-evil/secret.txt    "CANARY sibling"     a name that the root's name is a prefix of
    BOX/secret.txt            "CANARY parent"

`{WS}`, `{OUT}` and `{BOX}` in paths and targets stand for absolute paths. `want` is "ok" or the code of the error.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from typing import NamedTuple

PAYLOAD = b"PAYLOAD"
Made = tuple[str, ...]  # kind, path, and what the kind needs


class Case(NamedTuple):
    op: str
    path: str
    want: str
    tree: tuple[Made, ...]
    to: str = ""  # where a move goes
    final: str = ""  # for an ok write, append, mkdir or move: where the object is afterwards
    got: bytes = b""  # for an ok read
    parents: bool = False
    damage: bool = False  # the same call without our guard reaches outside

    @property
    def name(self) -> str:
        target = next((f" -> {made[2]}" for made in self.tree if made[0] == "link" and made[1] == "esc"), "")
        text = f"{self.op}{'-p' if self.parents else ''} {self.path}{f' to {self.to}' if self.to else ''}{target}"
        return ascii(text[:90])[1:-1]


def file(at: str, text: str | None = None) -> Made:
    return ("file", at, f"IN:{at}" if text is None else text)


def folder(at: str) -> Made:
    return ("dir", at)


def link(at: str, to: str) -> Made:
    return ("link", at, to)


PLAIN = (file("top.txt"), file("a/b/in.txt"), folder("empty"))

# -- the box -----------------------------------------------------------------------------------------------------------

OUTSIDE = {
    "outside/secret.txt": "CANARY outside",
    "outside/dir/deep.txt": "CANARY deep",
    "ws-evil/secret.txt": "CANARY sibling",
    "secret.txt": "CANARY parent",
}


def build_box(box: str, tree: tuple[Made, ...] = ()) -> str:
    """Make the box and give the path of its workspace."""
    os.makedirs(f"{box}/ws")
    for at, text in OUTSIDE.items():
        _build(box, ("file", at, text), box)
    for made in tree:
        _build(f"{box}/ws", made, box)
    return f"{box}/ws"


def fill(text: str, box: str) -> str:
    return text.replace("{WS}", f"{box}/ws").replace("{OUT}", f"{box}/outside").replace("{BOX}", box)


def _build(base: str, made: Made, box: str) -> None:
    kind, at = made[0], os.path.join(base, made[1])
    os.makedirs(at if kind == "dir" else os.path.dirname(at), exist_ok=True)
    if kind == "file":
        with open(at, "wb") as new:
            new.write(os.fsencode(made[2]))
    elif kind == "link":
        os.symlink(fill(made[2], box), at)
    elif kind == "hard":
        os.link(os.path.join(base, made[2]), at)
    elif kind == "fifo":
        os.mkfifo(at)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            where = os.open(os.path.dirname(at), os.O_PATH)
            try:
                bound.bind(f"/proc/self/fd/{where}/{os.path.basename(at)}")  # sun_path is short, paths are not
            finally:
                os.close(where)
    elif kind == "device":
        major, minor = made[2].split(":")
        os.mknod(at, stat.S_IFCHR | 0o666, os.makedev(int(major), int(minor)))


def state(top: str, *, without: str = "") -> dict[str, tuple[object, ...]]:
    """Everything at and below a directory, as far as anybody could notice a change."""
    found: dict[str, tuple[object, ...]] = {}
    pending = [top]
    while pending:
        here = pending.pop()
        for item in os.scandir(here):
            if item.path == without:
                continue
            info = item.stat(follow_symlinks=False)
            content: object = None
            if item.is_symlink():
                content = os.readlink(item.path)
            elif item.is_file(follow_symlinks=False):
                with open(item.path, "rb") as opened:
                    content = opened.read()
            elif item.is_dir(follow_symlinks=False):
                pending.append(item.path)
            found[item.path] = (info.st_mode, info.st_uid, info.st_gid, info.st_ino, info.st_nlink, content)
    return found


# -- the cases ---------------------------------------------------------------------------------------------------------

TRAVERSAL, ABSOLUTE, LEAVES = "path_traversal_attempt", "absolute_path_not_allowed", "symlink_outside_workspace"
NOT_FOUND, NO_FILE, NO_FOLDER, INVALID = "file_not_found", "not_a_file", "not_a_directory", "invalid_path"
EXISTS, NUL, LONG = "file_exists", "invalid_path_null_byte", "path_too_long"


def _plain() -> Iterator[Case]:
    yield Case("read", "top.txt", "ok", PLAIN, got=b"IN:top.txt")
    yield Case("read", "a/b/in.txt", "ok", PLAIN, got=b"IN:a/b/in.txt")
    for path in ("./top.txt", ".//top.txt", "././top.txt"):
        yield Case("read", path, "ok", PLAIN, got=b"IN:top.txt")
    for path in ("a//b/in.txt", "a/./b/in.txt", "a/b///in.txt"):
        yield Case("read", path, "ok", PLAIN, got=b"IN:a/b/in.txt")
    for path in ("a", "a/", ".", "empty", "./", "a/b/."):
        yield Case("read", path, NO_FILE, PLAIN)
    for path in ("top.txt/", "top.txt/.", "top.txt/x", "top.txt//"):
        yield Case("read", path, NO_FOLDER, PLAIN)
    for path in ("nope", "a/nope", "nope/in.txt", "nope/"):
        yield Case("read", path, NOT_FOUND, PLAIN)
    yield Case("write", "fresh.txt", "ok", PLAIN, final="fresh.txt")
    yield Case("write", "top.txt", "ok", PLAIN, final="top.txt")
    yield Case("write", "a/./b//in.txt", "ok", PLAIN, final="a/b/in.txt")
    yield Case("write", "x/y/z.txt", NOT_FOUND, PLAIN)
    yield Case("write", "x/y/z.txt", "ok", PLAIN, final="x/y/z.txt", parents=True)
    yield Case("write", "a/x/z.txt", "ok", PLAIN, final="a/x/z.txt", parents=True)
    yield Case("write", "top.txt/x", NO_FOLDER, PLAIN, parents=True)
    yield Case("write", "new/deeper/" + "n" * 256, INVALID, PLAIN, parents=True)
    yield Case("write", "n" * 256 + "/x", INVALID, PLAIN, parents=True)
    for path in ("fresh.txt/", "a", "a/", ".", "./", "empty/.", "fresh/."):
        yield Case("write", path, NO_FILE, PLAIN)
    yield Case("append", "top.txt", "ok", PLAIN, final="top.txt")
    yield Case("append", "fresh.txt", "ok", PLAIN, final="fresh.txt")
    yield Case("append", "a", NO_FILE, PLAIN)
    yield Case("mkdir", "n", "ok", PLAIN, final="n")
    yield Case("mkdir", "n/", "ok", PLAIN, final="n")
    yield Case("mkdir", "a", EXISTS, PLAIN)
    yield Case("mkdir", "top.txt", EXISTS, PLAIN)
    yield Case("mkdir", "x/y", NOT_FOUND, PLAIN)
    yield Case("mkdir", "x/y/z/", "ok", PLAIN, final="x/y/z", parents=True)
    yield Case("mkdir", "x/./y//z", "ok", PLAIN, final="x/y/z", parents=True)
    yield Case("mkdir", "a/b", "ok", PLAIN, final="a/b", parents=True)
    yield Case("mkdir", ".", "ok", PLAIN, final=".", parents=True)
    yield Case("mkdir", ".", INVALID, PLAIN)
    yield Case("mkdir", "top.txt", NO_FOLDER, PLAIN, parents=True)
    yield Case("mkdir", "top.txt/n", NO_FOLDER, PLAIN, parents=True)
    yield Case("mkdir", "new/" + "n" * 256, INVALID, PLAIN, parents=True)
    yield Case("list", ".", "ok", PLAIN)
    yield Case("list", "a/b/", "ok", PLAIN)
    yield Case("list", "nope", NOT_FOUND, PLAIN)
    yield Case("list", "top.txt", NO_FOLDER, PLAIN)
    yield Case("delete", "top.txt", "ok", PLAIN)
    yield Case("delete", "a", "ok", PLAIN)
    yield Case("delete", "a/", "ok", PLAIN)
    yield Case("delete", "nope", NOT_FOUND, PLAIN)
    yield Case("delete", "top.txt/", NO_FOLDER, PLAIN)
    yield Case("delete", "top.txt/x", NO_FOLDER, PLAIN)
    for path in (".", "./", "a/.", "./.", ".//", "a/b/./"):
        yield Case("delete", path, INVALID, PLAIN)
        yield Case("move", path, INVALID, PLAIN, to="elsewhere")
    yield Case("move", "top.txt", "ok", PLAIN, to="moved.txt", final="moved.txt")
    yield Case("move", "top.txt", "ok", PLAIN, to="a/moved.txt", final="a/moved.txt")
    yield Case("move", "a", "ok", PLAIN, to="a2", final="a2")
    yield Case("move", "a/", "ok", PLAIN, to="a2/", final="a2")
    yield Case("move", "top.txt", EXISTS, PLAIN, to="a")
    yield Case("move", "top.txt", EXISTS, PLAIN, to="a/b/in.txt")
    yield Case("move", "top.txt", EXISTS, PLAIN, to="top.txt")
    yield Case("move", "top.txt", NO_FOLDER, PLAIN, to="moved.txt/")
    yield Case("move", "top.txt/", NO_FOLDER, PLAIN, to="moved.txt")
    yield Case("move", "top.txt", NOT_FOUND, PLAIN, to="nope/moved.txt")
    yield Case("move", "nope", NOT_FOUND, PLAIN, to="moved.txt")
    yield Case("move", "a", INVALID, PLAIN, to="a/b/inside-itself")
    yield Case("move", "top.txt", INVALID, PLAIN, to=".")


def _text() -> Iterator[Case]:
    """Refused for the text alone."""
    inside = (file("in.txt"), file("a/b/x.txt"))
    for path in (
        "../secret.txt",
        "./../secret.txt",
        "a/../../secret.txt",
        "a/b/../../../secret.txt",
        ".//..//secret.txt",
        "../ws-evil/secret.txt",
        "../outside/../secret.txt",
        "../outside/dir/../secret.txt",
        "a/./.././../secret.txt",
    ):
        yield Case("read", path, TRAVERSAL, inside, damage=True)
        yield Case("delete", path, TRAVERSAL, inside, damage=True)
        yield Case("write", path, TRAVERSAL, inside, damage=True)
    for path in ("../ws/in.txt", "a/../in.txt", "in.txt/..", "nope/../in.txt", "a/..", "..//ws/in.txt", "a/b/.."):
        yield Case("read", path, TRAVERSAL, inside)
    for path in ("..", "../", "a/../..", "../outside", "../outside/"):
        yield Case("list", path, TRAVERSAL, inside, damage=True)
        yield Case("tree", path, TRAVERSAL, inside, damage=True)
        yield Case("delete", path, TRAVERSAL, inside)
    yield Case("write", "a/../../new.txt", TRAVERSAL, inside, damage=True)
    yield Case("mkdir", "../made", TRAVERSAL, inside, damage=True)
    yield Case("mkdir", "../outside/dir/n", TRAVERSAL, inside, parents=True, damage=True)
    yield Case("move", "../secret.txt", TRAVERSAL, inside, to="got.txt", damage=True)
    yield Case("move", "in.txt", TRAVERSAL, inside, to="../got.txt", damage=True)
    yield Case("move", "in.txt", TRAVERSAL, inside, to="a/../../got.txt", damage=True)
    for path in ("{OUT}/secret.txt", "/../{OUT}/secret.txt", "{WS}/../secret.txt", "//{OUT}/secret.txt"):
        yield Case("read", path, ABSOLUTE, inside, damage=True)
        yield Case("delete", path, ABSOLUTE, inside, damage=True)
    for path in (
        "/",
        "//",
        "/etc/passwd",
        "/dev/zero",
        "{WS}",
        "{WS}/in.txt",
        "/mnt/workspace/in.txt",
        "/proc/self/environ",
    ):
        yield Case("read", path, ABSOLUTE, inside)
        yield Case("delete", path, ABSOLUTE, inside)
    yield Case("write", "{OUT}/new.txt", ABSOLUTE, inside, damage=True)
    yield Case("write", "{OUT}/n/new.txt", ABSOLUTE, inside, parents=True)
    yield Case("mkdir", "{OUT}/n", ABSOLUTE, inside, damage=True)
    yield Case("list", "{OUT}", ABSOLUTE, inside, damage=True)
    yield Case("move", "in.txt", ABSOLUTE, inside, to="{OUT}/got.txt", damage=True)
    yield Case("move", "{OUT}/secret.txt", ABSOLUTE, inside, to="got.txt", damage=True)
    for op in ("read", "write", "append", "delete", "mkdir", "list", "stat", "tree"):
        yield Case(op, "", INVALID, inside)
        yield Case(op, "in.txt\0", NUL, inside)
        yield Case(op, "\0/../in.txt", NUL, inside)
        yield Case(op, "a/" * 2047 + "bb", LONG, inside)
        yield Case(op, "x" * 5000, LONG, inside)
        yield Case(op, "\ud800", INVALID, inside)
    yield Case("read", "a/" * 2047 + "b", NOT_FOUND, inside)  # 4095 bytes: the most that the kernel takes
    yield Case("read", "/" + "a" * 5000, LONG, inside)
    yield Case("move", "in.txt", NUL, inside, to="ok\0bad")
    yield Case("move", "in.txt", INVALID, inside, to="")
    yield Case("read", "é" * 128, INVALID, inside)
    yield Case("write", "n" * 256, INVALID, inside)


FILES_OUTSIDE = {  # target of a link: whether a naive read through it shows a secret
    "../outside/secret.txt": True,
    "{OUT}/secret.txt": True,
    "../secret.txt": True,
    "../ws-evil/secret.txt": True,
    "./../outside/secret.txt": True,
    "a/../../outside/secret.txt": True,
    "../ws/../secret.txt": True,
    ".//..//secret.txt": True,
    "../outside/dir/../secret.txt": True,
    "../outside/absent": False,
    "{OUT}/absent": False,
    "/nonexistent-entry": False,
    "/dev/stdin": False,
    "/proc/self/environ": False,
    "../ws/in.txt": False,
    "{WS}/in.txt": False,
    "/in.txt": False,
}


def _last_link_leaves() -> Iterator[Case]:
    for target, shows in FILES_OUTSIDE.items():
        tree = (file("in.txt"), folder("a"), link("esc", target))
        yield Case("read", "esc", LEAVES, tree, damage=shows)
        yield Case("write", "esc", LEAVES, tree, damage=shows or target.endswith("/absent"))
        yield Case("append", "esc", LEAVES, tree, damage=shows)
        yield Case("mkdir", "esc", LEAVES, tree, parents=True)
        yield Case("mkdir", "esc", EXISTS, tree)
        yield Case("list", "esc", LEAVES, tree)
        yield Case("delete", "esc", "ok", tree)
        yield Case("stat", "esc", "ok", tree)
        yield Case("move", "esc", "ok", tree, to="esc2", final="esc2")
        yield Case("create", "esc", EXISTS, tree)
        yield Case("move", "in.txt", EXISTS, tree, to="esc")


FOLDERS_OUTSIDE = {
    "../outside": True,
    "../outside/": True,
    "{OUT}": True,
    "../ws-evil": True,
    "..": True,
    "../": True,
    "../.": True,
    "a/../..": True,
    "../outside/dir/..": True,
    "l1": True,
    "{BOX}": True,
    "../ws": False,
    "{WS}": False,
    "/": False,
    "/proc/self/root": False,
    "/proc/self/cwd": False,
    "/nonexistent-entry": False,
    "../nonexistent-entry": False,
}


def _middle_link_leaves() -> Iterator[Case]:
    for target, shows in FOLDERS_OUTSIDE.items():
        tree = (
            file("in.txt"),
            folder("a"),
            link("esc", target),
            link("l1", "./../outside"),
            folder("p/q"),
            link("p/q/r", "../../esc"),
        )
        yield Case("list", "esc", LEAVES, tree, damage=shows)
        yield Case("tree", "esc", LEAVES, tree, damage=shows)
        yield Case("list", "esc/", LEAVES, tree, damage=shows)
        yield Case("read", "esc/secret.txt", LEAVES, tree, damage=shows)
        yield Case("read", "esc/absent", LEAVES, tree)
        yield Case("read", "p/q/r/secret.txt", LEAVES, tree, damage=shows)
        yield Case("stat", "esc/secret.txt", LEAVES, tree)
        yield Case("stat", "esc/", LEAVES, tree)
        yield Case("write", "esc/new.txt", LEAVES, tree, damage=shows)
        yield Case("write", "esc/n/new.txt", LEAVES, tree, parents=True)
        yield Case("append", "esc/secret.txt", LEAVES, tree, damage=shows)
        yield Case("delete", "esc/secret.txt", LEAVES, tree, damage=shows)
        yield Case("delete", "esc/", NO_FOLDER, tree)
        yield Case("delete", "esc", "ok", tree)
        yield Case("mkdir", "esc/n", LEAVES, tree, damage=shows)
        yield Case("mkdir", "esc/n", LEAVES, tree, parents=True, damage=shows)
        yield Case("move", "in.txt", LEAVES, tree, to="esc/got.txt", damage=shows)
        yield Case("move", "esc/secret.txt", LEAVES, tree, to="got.txt", damage=shows)
        yield Case("move", "in.txt", NO_FOLDER, tree, to="esc/")


INSIDE = (
    file("real/f.txt"),
    link("lf", "real/f.txt"),
    link("ld", "real"),
    link("ldslash", "real/"),
    link("lddot", "real/."),
    link("lself", "."),
    folder("s/t"),
    link("s/t/up", "../.."),
    link("s/upone", ".."),
    file("s/x.txt"),
    file("x.txt"),
    link("deep", "s/t"),
    link("s/around", "../real/../s/x.txt"),
    link("s/t/far", "../../ld/f.txt"),
)
LOOPS = (
    link("self", "self"),
    link("p", "q"),
    link("q", "p"),
    folder("d"),
    link("d/back", "../d/back"),
    link("dl", "dl/x"),
)
DANGLING = (
    folder("a"),
    link("dang", "a/fake"),
    link("dangdir", "a/no/x"),
    file("f.txt"),
    link("via", "f.txt/x"),
    link("updang", "a/../fake"),
)


def _links_stay_inside() -> Iterator[Case]:
    f = b"IN:real/f.txt"
    for path in (
        "lf",
        "ld/f.txt",
        "ldslash/f.txt",
        "lddot/f.txt",
        "lself/lself/ld/f.txt",
        "s/t/up/lf",
        "s/t/far",
        "deep/up/ld/f.txt",
    ):
        yield Case("read", path, "ok", INSIDE, got=f)
    for path in ("s/t/up/s/t/up/s/x.txt", "s/around", "s/upone/s/x.txt", "deep/up/s/upone/s/around"):
        yield Case("read", path, "ok", INSIDE, got=b"IN:s/x.txt")
    yield Case("read", "s/upone/x.txt", "ok", INSIDE, got=b"IN:x.txt")
    yield Case("read", "lf/", NO_FOLDER, INSIDE)
    yield Case("read", "ld", NO_FILE, INSIDE)
    yield Case("write", "lf", "ok", INSIDE, final="real/f.txt")
    yield Case("write", "ld/new.txt", "ok", INSIDE, final="real/new.txt")
    yield Case("write", "ld/f.txt", "ok", INSIDE, final="real/f.txt")
    yield Case("write", "ld/n/new.txt", "ok", INSIDE, final="real/n/new.txt", parents=True)
    yield Case("write", "s/t/up/new.txt", "ok", INSIDE, final="new.txt")
    yield Case("write", "s/around", "ok", INSIDE, final="s/x.txt")
    yield Case("write", "s/t/far", "ok", INSIDE, final="real/f.txt")
    for path in ("ld", "lself", "s/upone", "s/t/up", "ldslash", "lddot"):
        yield Case("write", path, NO_FILE, INSIDE)
    yield Case("append", "lf", "ok", INSIDE, final="real/f.txt")
    yield Case("mkdir", "ld/n1/n2", "ok", INSIDE, final="real/n1/n2", parents=True)
    yield Case("mkdir", "s/t/up/n", "ok", INSIDE, final="n")
    yield Case("mkdir", "ld", EXISTS, INSIDE)
    yield Case("mkdir", "lf", NO_FOLDER, INSIDE, parents=True)
    yield Case("list", "ld", "ok", INSIDE)
    yield Case("list", "s/t/up", "ok", INSIDE)
    yield Case("delete", "ld", "ok", INSIDE)
    yield Case("delete", "ld/", NO_FOLDER, INSIDE)
    yield Case("delete", "lf", "ok", INSIDE)
    yield Case("delete", "ld/f.txt", "ok", INSIDE)
    yield Case("delete", "s/t/up/x.txt", "ok", INSIDE)
    yield Case("move", "lf", "ok", INSIDE, to="s/lf2", final="s/lf2")
    yield Case("move", "x.txt", "ok", INSIDE, to="ld/x2.txt", final="real/x2.txt")
    yield Case("move", "x.txt", EXISTS, INSIDE, to="ld")
    yield Case("create", "lf", EXISTS, INSIDE)
    for path in ("self", "p", "d/back", "dl", "p/x", "self/"):
        yield Case("read", path, INVALID, LOOPS)
        yield Case("list", path, INVALID, LOOPS)
    for path in ("self", "p", "d/back"):
        yield Case("write", path, INVALID, LOOPS)
        yield Case("delete", path, "ok", LOOPS)
        yield Case("mkdir", path, INVALID, LOOPS, parents=True)
    for path in ("dang", "dangdir", "updang", "dang/x"):
        yield Case("read", path, NOT_FOUND, DANGLING)
    yield Case("read", "via", NO_FOLDER, DANGLING)
    yield Case("write", "dang", "ok", DANGLING, final="a/fake")
    yield Case("write", "updang", "ok", DANGLING, final="fake")
    yield Case("write", "dangdir", NOT_FOUND, DANGLING)
    yield Case("write", "dangdir", NOT_FOUND, DANGLING, parents=True)
    yield Case("write", "via", NO_FOLDER, DANGLING)
    yield Case("write", "dang/new.txt", NOT_FOUND, DANGLING)
    yield Case("write", "dang/new.txt", NO_FOLDER, DANGLING, parents=True)
    yield Case("mkdir", "dang", EXISTS, DANGLING)
    yield Case("mkdir", "dang", NO_FOLDER, DANGLING, parents=True)
    yield Case("mkdir", "dang/n", NO_FOLDER, DANGLING, parents=True)
    yield Case("create", "dang", EXISTS, DANGLING)
    yield Case("create", "new", "ok", DANGLING, final="new")
    chain = (file("end"), *(link(f"c{number}", f"c{number + 1}") for number in range(39)), link("c39", "end"))
    yield Case("read", "c0", "ok", chain, got=b"IN:end")
    yield Case("read", "c0", INVALID, (*chain[:-1], link("c39", "c40"), link("c40", "end")))


def _special() -> Iterator[Case]:
    tree: tuple[Made, ...] = (("fifo", "pipe"), link("lp", "pipe"), ("socket", "sock"), link("ls", "sock"))
    for path in ("pipe", "lp", "sock", "ls"):
        yield Case("read", path, NO_FILE, tree)
        yield Case("write", path, NO_FILE, tree)
        yield Case("append", path, NO_FILE, tree)
        yield Case("list", path, NO_FOLDER, tree)
        yield Case("stat", path, "ok", tree)
        yield Case("delete", path, "ok", tree)
    yield Case("read", "pipe/x", NO_FOLDER, tree)
    yield Case("move", "pipe", "ok", tree, to="pipe2", final="pipe2")
    for number in ("1:3", "1:5", "5:0", "0:0", "10:130"):  # null, zero, tty, an overlay's whiteout, a watchdog
        nodes: tuple[Made, ...] = (("device", "node", number), link("ln", "node"))
        for path in ("node", "ln"):
            yield Case("read", path, NO_FILE, nodes)
            yield Case("write", path, NO_FILE, nodes)
        yield Case("delete", "node", "ok", nodes)
    hard: tuple[Made, ...] = (file("one"), ("hard", "two", "one"), ("hard", "out", "../secret.txt"))
    yield Case("read", "two", "ok", hard, got=b"IN:one")
    yield Case("write", "two", "ok", hard, final="two")
    yield Case("write", "out", "ok", hard, final="out")  # the outside name of the inode keeps its bytes
    yield Case("append", "out", "ok", hard, final="out")
    yield Case("delete", "out", "ok", hard)


_WORDS = r""".... ..x x..y ..x/..y ... x.. -rf -- dot. * ? [a] {a,b} ~ ~root `id` $(id) $HOME a|b a;b a&b
{WS 'q' "q" # .git .aw %00 %2e%2e ..%2f % \ a\b ..\x C:\x C: con nul.txt"""
NAMES = (
    *_WORDS.split(),
    *(". .", ".. ", " ..", " lead", "trail ", "\x1b[31mred", "a\nb", "a\tb", "\r", "\x7f"),
    *("\u2215", "x\u2215y", "\uff0e\uff0e", "\u202etxt.exe", "é", "e\u0301", "日本", "🙂"),
    *("\udcff", "a\udc80b", "\udcc0\udcaf", "n" * 255, "é" * 127),
)


def _names() -> Iterator[Case]:
    for name in NAMES:
        tree = (file(name, "N:" + name),)
        yield Case("read", name, "ok", tree, got=os.fsencode("N:" + name))
        yield Case("write", name, "ok", (folder(os.path.dirname(name) or "."),), final=name)
        yield Case("delete", name, "ok", tree)
        yield Case("list", ".", "ok", tree)
    for path in (
        "%2e%2e/secret.txt",
        "..%2fsecret.txt",
        "..%c0%afsecret.txt",
        "..;/secret.txt",
        "..././secret.txt",
        " ../secret.txt",
        ".. /secret.txt",
        "\uff0e\uff0e/secret.txt",
        "..\\secret.txt",
        "...//secret.txt",
    ):
        yield Case("read", path, NOT_FOUND, (file("in.txt"),))


GROUPS = {
    "plain": tuple(_plain()),
    "text": tuple(_text()),
    "last-link-leaves": tuple(_last_link_leaves()),
    "middle-link-leaves": tuple(_middle_link_leaves()),
    "links-stay-inside": tuple(_links_stay_inside()),
    "special": tuple(_special()),
    "names": tuple(_names()),
}

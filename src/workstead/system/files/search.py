"""Find files beneath a `Root` by name or by content.

Plain text is searched in this process. A regular expression is not: a hostile file can keep Python's matcher busy for
years while it holds the GIL, and nothing inside the process can stop it. So expressions run in a small separate process
that gets bytes through a pipe and is killed at its timeout.
"""

from __future__ import annotations

import os
import re
from time import monotonic

from workstead.errors import Invalid, TimedOut, ToolFailed
from workstead.model.file import Found, Match, Matches, Named
from workstead.system.files.root import Root, reopen
from workstead.system.files.walk import Limits, Walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

MAX_MATCHES = 1_000
MAX_SEARCHED_BYTES = 4 << 20  # larger files are skipped
_MAX_LINE = 400  # bytes shown of a matching line
_BINARY_PROBE = 8192
_MAX_ALTERNATIVES = 64  # of a pattern with braces


def find_names(
    root: Root, pattern: str, path: str | bytes = ".", *, max_matches: int = MAX_MATCHES, limits: Limits | None = None
) -> Found:
    """Find every name that matches a glob: without a slash the name at any depth, else the path relative to `path`."""
    matches = glob_matcher(pattern)
    by_path = "/" in pattern
    paths: list[str] = []
    with Walk(root, path, limits) as walk:
        for visit in walk:
            prefix = visit.prefix()
            for item in visit.entries or ():
                if matches(prefix + item.name if by_path else item.name):
                    paths.append(prefix + item.name)
            if len(paths) > max_matches:
                return Found(paths=sorted(paths[:max_matches]), truncated=True)
    return Found(paths=sorted(paths), truncated=False)


def find_paths(
    root: Root,
    path: str | bytes = ".",
    *,
    pattern: str = "**",
    exclude: Sequence[str] = (),
    limits: Limits | None = None,
) -> list[Named]:
    """Return all entries whose path relative to `path` matches a glob, in order; `exclude` matches are not searched."""
    from workstead.system.files.operations import kind_of

    wanted = path_matcher(pattern)
    unwanted = [path_matcher(each) for each in exclude]
    found: list[Named] = []
    with Walk(root, path, limits) as walk:
        for visit in walk:
            prefix = visit.prefix()
            left_out = set()
            for item in visit.entries or ():
                name = prefix + item.name
                if any(matches(name) for matches in unwanted):
                    left_out.add(item.name)
                elif wanted(name):
                    try:
                        found.append(Named(path=name, kind=kind_of(item.stat(follow_symlinks=False).st_mode)))
                    except OSError:
                        continue  # removed since its name was read
            if left_out:
                visit.subdirectories = [name for name in visit.subdirectories if name not in left_out]
    found.sort(key=lambda each: each.path)
    return found


def find_text(
    root: Root,
    needle: str | bytes,
    path: str | bytes = ".",
    *,
    regex: bool = False,
    names: str = "*",
    max_matches: int = MAX_MATCHES,
    max_file_bytes: int = MAX_SEARCHED_BYTES,
    limits: Limits | None = None,
    may: Callable[[str], bool] | None = None,
) -> Matches:
    """Find every line that contains `needle`, in files whose name matches `names`.

    Binary and large files are skipped, and paths that `may` rejects."""
    pattern = os.fsencode(needle)
    if not pattern:
        raise Invalid("there is nothing to search for")
    limits = limits or Limits()
    wanted = glob_matcher(names)
    by_path = "/" in names
    matches: list[Match] = []
    count = {"searched": 0, "binary": 0, "too_large": 0}
    with (
        Walk(root, path, limits) as walk,
        _Expression(pattern, limits.max_seconds) if regex else _Text(pattern) as look,
    ):
        for visit in walk:
            prefix = visit.prefix()
            for name in sorted(visit.files()):
                if not wanted(prefix + name if by_path else name) or (may is not None and not may(prefix + name)):
                    continue
                data = _content(walk.fd, os.fsencode(name), max_file_bytes, count)
                for line, text in look.lines(data, max_matches + 1 - len(matches)) if data else ():
                    matches.append(Match(path=prefix + name, line=line, text=text))
                if len(matches) > max_matches:
                    return Matches(matches=matches[:max_matches], truncated=True, **count)
                walk.check_time()
    return Matches(matches=matches, truncated=False, **count)


def _content(folder: int, name: bytes, max_bytes: int, count: dict[str, int]) -> bytes:
    """Return the content of a file to search, or b"" for a file to skip."""
    try:
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            fd, found = reopen(handle)
        finally:
            os.close(handle)
    except OSError:
        return b""  # gone, another kind by now, or not readable
    try:
        if found.st_size > max_bytes:
            count["too_large"] += 1
            return b""
        data = os.pread(fd, max_bytes, 0)
    except OSError:
        return b""
    finally:
        os.close(fd)
    if b"\0" in data[:_BINARY_PROBE]:
        count["binary"] += 1
        return b""
    count["searched"] += 1
    return data


class _Text:
    """Search for plain bytes."""

    def __init__(self, needle: bytes) -> None:
        self._needle = needle

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def lines(self, data: bytes, most: int) -> Iterator[tuple[int, str]]:
        """Yield number and text of the first `most` lines that contain it."""
        at = data.find(self._needle)
        number, counted = 1, 0
        while at >= 0 and most > 0:
            number += data.count(b"\n", counted, at)
            start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
            end = len(data) if end < 0 else end
            yield number, _text(data[start:end])
            most -= 1
            number, counted = number + 1, end + 1
            at = data.find(self._needle, end + 1)


class _Expression:
    """Search for a regular expression, line by line, in a process that can be killed."""

    # Reads the expression and reports its syntax error; then reads frames (length, most, bytes) and answers each with
    # the matching lines, as "number TAB text".
    _PROGRAM = r"""
import re, struct, sys
take, give = sys.stdin.buffer, sys.stdout.buffer
def answer(data):
    give.write(struct.pack("!Q", len(data)) + data)
    give.flush()
try:
    search = re.compile(take.read(struct.unpack("!Q", take.read(8))[0])).search
except Exception as error:
    answer(str(error).encode())
    sys.exit()
answer(b"")
while head := take.read(16):
    size, most = struct.unpack("!QQ", head)
    out = []
    for number, line in enumerate(take.read(size).split(b"\n"), 1):
        if search(line):
            out.append(b"%d\t%s\n" % (number, line[:400]))
            if len(out) >= most:
                break
    answer(b"".join(out))
"""

    def __init__(self, pattern: bytes, seconds: float) -> None:
        import subprocess
        import sys

        self._seconds = seconds
        self._until = monotonic() + seconds
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", self._PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
        )
        try:
            self._send(len(pattern).to_bytes(8, "big") + pattern)
            complaint = self._receive().decode()
            if complaint:
                raise Invalid(f"not a regular expression: {complaint}")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()  # closes the pipes and reaps the process

    def lines(self, data: bytes, most: int) -> Iterator[tuple[int, str]]:
        """Yield number and text of the first `most` lines that match."""
        self._send(len(data).to_bytes(8, "big") + most.to_bytes(8, "big") + data)
        for answer in self._receive().split(b"\n")[:-1]:
            number, _, line = answer.partition(b"\t")
            yield int(number), _text(line)

    def _send(self, data: bytes) -> None:
        """Send one frame. The process reads a whole frame before it matches, so writing never waits for a match."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def _receive(self) -> bytes:
        return self._receive_bytes(int.from_bytes(self._receive_bytes(8), "big"))

    def _receive_bytes(self, size: int) -> bytes:
        from select import select

        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        data = b""
        while len(data) < size:
            ready, _, _ = select([fd], [], [], max(0.0, self._until - monotonic()))
            if not ready:
                raise TimedOut(
                    f"the expression took longer than {self._seconds:g} seconds",
                    hint="the limit is max_seconds; search for plain text, or a simpler expression",
                    details={"limit": "max_seconds", "max": self._seconds},
                )
            chunk = os.read(fd, size - len(data))
            if not chunk:
                raise ToolFailed("the process that matches regular expressions has ended")
            data += chunk
        return data


def _text(line: bytes) -> str:
    return os.fsdecode(line[:_MAX_LINE].rstrip(b"\r"))


def glob_matcher(pattern: str) -> Callable[[str], object]:
    """Return a glob as a function: `*`, `?` and `[...]` match within a name, a component `**` matches any number of
    names.

    `fnmatch` generates expressions without backtracking over a star, and components are matched one by one, so that no
    combination of pattern and name is slow.
    """
    if "/" not in pattern:
        from fnmatch import translate

        return re.compile(translate(pattern)).match
    return path_matcher(pattern)


def path_matcher(pattern: str) -> Callable[[str], object]:
    """Return a glob for whole paths as a function: without a slash it matches one name at the top (except `**`)."""
    alternatives = _without_braces(pattern)
    if len(alternatives) > 1:
        matchers = [path_matcher(each) for each in alternatives]
        return lambda path: any(matches(path) for matches in matchers)
    from fnmatch import translate

    parts = [None if part == "**" else re.compile(translate(part)).match for part in pattern.strip("/").split("/")]

    def reached(states: set[int]) -> set[int]:
        """Add the states after a `**`, which may also match nothing."""
        for state in sorted(states):
            while state < len(parts) and parts[state] is None:
                state += 1
                states.add(state)
        return states

    def matches(path: str) -> bool:
        states = reached({0})
        for name in path.split("/"):
            after = {state for state in states if state < len(parts) and parts[state] is None}
            after |= {state + 1 for state in states if state < len(parts) and (part := parts[state]) and part(name)}
            states = reached(after)
        return len(parts) in states

    return matches


def _without_braces(pattern: str) -> list[str]:
    """Expand `*.{js,ts}` to `*.js` and `*.ts`; a pattern with too many alternatives is returned unchanged."""
    found, done = [pattern], False
    while not done and len(found) <= _MAX_ALTERNATIVES:
        done = True
        for at, each in enumerate(found):
            inner = re.search(r"\{([^{}/]*,[^{}/]*)\}", each)
            if inner:
                found[at : at + 1] = [
                    each[: inner.start()] + part + each[inner.end() :] for part in inner.group(1).split(",")
                ]
                done = False
                break
    return found if len(found) <= _MAX_ALTERNATIVES else [pattern]

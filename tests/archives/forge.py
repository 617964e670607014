"""Archives that nobody should write: taken apart, changed, and put together again, sealed as if they were whole."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from backports import zstd

from workstead.archives import headers
from workstead.archives.headers import FILE, FOLDER, LINK, Member
from workstead.archives.read import Nowhere, Reader
from workstead.archives.trees import Caps
from workstead.archives.write import manifest_line
from workstead.errors import WorksteadError

Part = tuple[bytes, bytes, bytes]  # header, content, line of the manifest


def plain(name: str, data: bytes = b"", **more: Any) -> Part:
    """A file as we write it."""
    member = Member(kind=FILE, name=name, size=len(data), **more)
    return headers.encode(member), data, manifest_line(member, sha256(data).hexdigest())


def folder(name: str, mode: int = 0o755) -> Part:
    member = Member(kind=FOLDER, name=name, mode=mode)
    return headers.encode(member), b"", manifest_line(member, "")


def link(name: str, target: str) -> Part:
    member = Member(kind=LINK, name=name, mode=0o777, target=target)
    return headers.encode(member), b"", manifest_line(member, "")


def foreign(
    name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", form: int = tarfile.PAX_FORMAT, **more: Any
) -> Part:
    """A member as another program writes it."""
    info = tarfile.TarInfo(name)
    info.type = kind
    info.size = len(data)
    for key, value in more.items():
        setattr(info, key, value)
    return info.tobuf(form), data, b"x\n"


def patched(part: Part, at: int, raw: bytes) -> Part:
    """The same member with some bytes of its header changed, and the checksum made good again."""
    header = bytearray(part[0])
    header[at : at + len(raw)] = raw
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return bytes(header), part[1], part[2]


class _Found(Exception):
    """The state that the files are."""


class _Prying(Reader):
    def _manifest(self, member: Member, now: str) -> dict[str, Any]:
        raise _Found(now)


def _state_of(raw: bytes) -> str:
    try:
        _Prying([zstd.compress(raw)], Caps(max_ratio=1 << 40), Nowhere()).read()
    except _Found as found:
        return str(found.args[0])
    except WorksteadError:
        pass  # nobody comes so far
    return ""


class Forge:
    """An archive in pieces."""

    def __init__(self, path: str) -> None:
        raw = zstd.decompress(Path(path).read_bytes())
        self.parts: list[Part] = []
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            for info in tar:
                data = raw[info.offset_data : info.offset_data + info.size]
                self.parts.append((raw[info.offset : info.offset_data], data, b""))
        *self.parts, manifest = self.parts
        *lines, summary = manifest[1].splitlines(keepends=True)
        self.parts = [(header, data, line) for (header, data, _), line in zip(self.parts, lines, strict=True)]
        self.summary: dict[str, Any] = json.loads(summary)
        self.now = ""  # what the manifest says the files are; else what they are

    def find(self, name: str) -> int:
        """The place of a member, or of the first below a directory."""
        names = [json.loads(line)[1] for _, _, line in self.parts]
        return next(at for at, each in enumerate(names) if each == name or (name[-1] == "/" and each.startswith(name)))

    def after(self, name: str, *parts: Part) -> None:
        """Put something behind a member."""
        at = self.find(name) + 1
        self.parts[at:at] = parts

    def replace(self, name: str, part: Part) -> None:
        self.parts[self.find(name)] = part

    def tar(self) -> bytes:
        """All of it, sealed."""
        before = self.summary["now"]
        after = _state_of(self._tar()) or before
        for state in self.summary["states"] if isinstance(self.summary["states"], list) else ():
            state["root"] = after if state["root"] == before else state["root"]
        self.summary["now"] = self.now or after
        return self._tar()

    def _tar(self) -> bytes:
        lines = b"".join(line for _, _, line in self.parts)
        summary = {**self.summary, "sealed": sha256(lines).hexdigest()}
        parts = [*self.parts, plain("manifest.jsonl", lines + json.dumps(summary).encode() + b"\n")]
        return b"".join(header + data + headers.padding(len(data)) for header, data, _ in parts) + headers.END

    def write(self, path: Path, change: Callable[[bytes], bytes] = lambda raw: raw) -> Path:
        path.write_bytes(zstd.compress(change(self.tar()), options={zstd.CompressionParameter.checksum_flag: 1}))
        return path

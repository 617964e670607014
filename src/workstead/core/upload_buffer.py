"""Buffer an upload so that the write can be retried after a snapshot or an approval."""

from __future__ import annotations

import os
from contextlib import contextmanager

from workstead.errors import from_os
from workstead.system.files.reading import chunks_of
from workstead.system.files.resolved_entry import FACT_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from workstead.core.home import Home


class Given:
    """Content in memory, or a stream that can be read once."""

    def __init__(self, data: bytes | Iterable[bytes]) -> None:
        self._data = data

    def again(self) -> bytes | Iterable[bytes]:
        """Return the content from its beginning."""
        return self._data

    def first(self, most: int) -> bytes | None:
        """Return the first `most` bytes."""
        return self._data[:most] if isinstance(self._data, bytes) else None

    def start(self) -> bytes | None:
        """Return enough of the beginning to tell whether the content is binary."""
        return self.first(FACT_BYTES)


class _Spooled(Given):
    """A stream buffered in an unnamed temporary file, to be read again."""

    def __init__(self, fd: int, size: int) -> None:
        super().__init__(b"")
        self._fd = fd
        self._size = size

    def again(self) -> Iterable[bytes]:
        return chunks_of(self._fd, self._size)

    def first(self, most: int) -> bytes:
        return os.pread(self._fd, most, 0)


@contextmanager
def spooled(home: Home, data: bytes | Iterable[bytes], most: int, *, again: bool) -> Iterator[Given]:
    """Yield the content, in a form that can be read again if needed; of a stream not much more than `most` bytes."""
    if not again or isinstance(data, bytes):
        yield Given(data)
        return
    from tempfile import TemporaryFile

    try:
        with TemporaryFile(dir=home.path) as file:
            size = 0
            for chunk in data:
                size += file.write(chunk)
                if size > most:  # enough to know that it is too large
                    break
            file.flush()
            yield _Spooled(file.fileno(), size)
    except OSError as error:
        raise from_os(error, "what is to be written") from error

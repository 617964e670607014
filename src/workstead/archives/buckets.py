"""Archives in an object store: `s3://BUCKET/KEY`, by obstore, with the credentials of the environment.

A small archive is put under its key in one conditional request. A large one is uploaded in parts under a temporary key,
as it is written, and then copied to its key by the server, again only if the key is free. A killed writer leaves parts
that no listing shows, which a lifecycle rule of the bucket removes, or at worst the object under the temporary key.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from hashlib import sha256

from workstead.errors import (
    ArchiveNotFound,
    ArchiveTooLarge,
    BucketUnavailable,
    FileExists,
    InvalidUsage,
    PermissionDenied,
    ToolMissing,
)
from workstead.installation import install_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_PART = 8 << 20
_MOST_COPIED = 5 << 30  # limit of one copy request of S3


@contextmanager
def writing(location: str, *, replace: bool) -> Iterator[_Object]:
    """Yield a target to write an archive to; it becomes visible when the context ends without an error."""
    bucket, key = split(location)
    target = _Object(_store(bucket), location, key, replace=replace)
    try:
        yield target
        target.stand()
    finally:
        target.let_go()


@contextmanager
def reading(location: str) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Yield the size of an archive and its bytes, streamed."""
    bucket, key = split(location)
    store = _store(bucket)
    import obstore

    with _said(location):
        found = obstore.get(store, key)
    yield int(found.meta["size"]), _chunks(location, found)


def listing(location: str) -> dict[str, int]:
    """Return the names of the objects directly below a prefix, with their sizes."""
    bucket, key = split(location)
    store = _store(bucket)
    import obstore

    found = {}
    with _said(location):
        for batch in obstore.list(store, prefix=f"{key}/"):
            for each in batch:
                name = str(each["path"]).removeprefix(f"{key}/")
                if "/" not in name:
                    found[name] = int(each["size"])
    return found


def _chunks(location: str, found: Any) -> Iterator[bytes]:
    with _said(location):
        for chunk in found.stream(min_chunk_size=1 << 20):
            yield bytes(chunk)


def split(location: str) -> tuple[str, str]:
    """Split an `s3://` URL into bucket and key; refuse anything else in it, credentials above all."""
    bucket, slash, key = location.removeprefix("s3://").partition("/")
    plain = bucket.replace("-", "").replace(".", "")
    if not slash or not key or key.endswith("/") or not plain.isascii() or not plain.isalnum():
        raise InvalidUsage(
            f"{location if '@' not in location else 's3://…'} is not s3://BUCKET/KEY",
            hint="credentials come from the environment, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    return bucket, key


def _store(bucket: str) -> Any:
    try:
        from obstore.store import S3Store
    except ImportError:
        raise ToolMissing("s3:// needs the package obstore", hint=install_command("s3")) from None
    return S3Store(bucket, copy_if_not_exists="multipart")


@contextmanager
def _said(location: str) -> Iterator[None]:
    """Translate the errors of a bucket into ours."""
    try:
        yield
    except FileNotFoundError:
        raise ArchiveNotFound(f"there is no {location}", hint="check the bucket and the key") from None
    except Exception as error:
        if type(error).__module__ != "obstore.exceptions":
            raise
        name, said = type(error).__name__, str(error).partition("\n")[0][:300]
        if name == "AlreadyExistsError":
            raise _exists(location) from None
        if name in ("PermissionDeniedError", "UnauthenticatedError"):
            raise PermissionDenied(f"{location}: {said}", hint="check the credentials in the environment") from None
        raise BucketUnavailable(
            f"{location}: {said}", hint="AWS_ENDPOINT_URL, AWS_REGION and the credentials come from the environment"
        ) from None


def _exists(location: str) -> FileExists:
    return FileExists(f"{location} exists already", hint="choose another name, or --force")


class _Object:
    """An upload to a bucket: buffered in memory while it is small, sent in parts from then on."""

    def __init__(self, store: Any, location: str, key: str, *, replace: bool) -> None:
        import obstore

        self._api = obstore
        self._store = store
        self._location = location
        self._key = key
        self._replace = replace
        self._aside = f"{key}.{os.urandom(8).hex()}.part"
        self._buffer = bytearray()
        self._parts: Any = None
        self._digest = sha256()
        self.size = 0
        with _said(location), suppress(FileNotFoundError):
            if not replace and obstore.head(store, key):
                raise _exists(location)

    def write(self, data: bytes) -> None:
        """Append."""
        self._digest.update(data)
        self.size += len(data)
        if self.size > _MOST_COPIED and not self._replace:
            raise ArchiveTooLarge(
                "an archive over 5 GB cannot be put into a bucket only if nothing is there", hint="--force"
            )
        self._buffer += data
        if len(self._buffer) > _PART:
            with _said(self._location):
                self._send()

    def _send(self) -> None:
        if self._parts is None:
            where = self._key if self._replace else self._aside
            self._parts = self._api.open_writer(self._store, where, buffer_size=_PART, max_concurrency=4)
        self._parts.write(bytes(self._buffer))
        self._buffer.clear()

    def digest(self) -> str:
        """Return the digest of all bytes written."""
        return self._digest.hexdigest()

    def stand(self) -> None:
        """Make the object visible under its key."""
        with _said(self._location):
            if self._parts is None:
                mode: Any = "overwrite" if self._replace else "create"
                self._api.put(self._store, self._key, bytes(self._buffer), mode=mode, use_multipart=False)
                return
            self._send()
            self._parts.close()
            if not self._replace:
                try:
                    self._api.copy(self._store, self._aside, self._key, overwrite=False)
                finally:
                    self._api.delete(self._store, self._aside)

    def let_go(self) -> None:
        """Abandon an unfinished upload, which never becomes visible."""
        self._parts = None

"""Archives in a bucket of a real server: put, not replaced, read, refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import workstead
from archives.bucket_server import BUCKET, bucket_server
from workstead.errors import (
    ArchiveDamaged,
    ArchiveNotFound,
    BucketUnavailable,
    FileExists,
    InvalidUsage,
    PermissionDenied,
    ToolMissing,
)
from workstead.installation import install_command
from workstead.local import Local
from workstead.settings import Settings


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with bucket_server() as variables:
        yield variables


@pytest.fixture(autouse=True)
def _variables(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def desk(workspaces: Local) -> str:
    workspaces.create(id="fix/a")
    workspaces.write_file("fix/a", "work/x", "x")
    workspaces.snapshot("fix/a", label="one")
    return "fix/a"


def names() -> list[str]:
    import obstore
    from obstore.store import S3Store

    return sorted(each["path"] for page in obstore.list(S3Store(BUCKET)) for each in page)


@pytest.mark.parametrize("size", [0, 30 << 20], ids=["in one piece", "in parts"])
def test_an_archive_goes_to_a_bucket_and_comes_back(
    workspaces: Local, desk: str, tmp_path: Path, settings: Settings, size: int
) -> None:
    content = os.urandom(size)
    Path(workspaces.get(desk).path, "work", "large").write_bytes(content)
    target = f"s3://{BUCKET}/desks/{size}.aw.tar.zst"
    done = workspaces.archive(desk, target)
    assert done.path == target
    assert done.bytes > size
    assert workspaces.verify_archive(target).digest == done.digest
    with workstead.open(str(tmp_path / "elsewhere"), settings=settings) as elsewhere:
        back = elsewhere.create(f"archive:{target}", id="new/a")
        assert back.source == f"archive:{target}"
        assert Path(back.path, "work", "large").read_bytes() == content
        assert [each.label for each in elsewhere.snapshots("new/a")] == ["", "one", ""]
    with pytest.raises(FileExists):
        workspaces.archive(desk, target)
    assert workspaces.verify_archive(target).digest == done.digest
    again = workspaces.archive(desk, target, replace=True)
    assert workspaces.verify_archive(target).digest == again.digest != done.digest
    assert not [name for name in names() if name.endswith(".part")]


@pytest.mark.parametrize("size", [0, 12 << 20], ids=["in one piece", "in parts"])
def test_one_that_comes_up_meanwhile_is_not_replaced(workspaces: Local, desk: str, size: int) -> None:
    import obstore
    from obstore.store import S3Store

    Path(workspaces.get(desk).path, "work", "large").write_bytes(os.urandom(size))
    key = f"raced/{size}.aw.tar.zst"
    raced = []

    def race(done: int, total: int) -> None:
        if not raced:
            raced.append(obstore.put(S3Store(BUCKET), key, b"somebody else's"))

    with pytest.raises(FileExists):
        workspaces.archive(desk, f"s3://{BUCKET}/{key}", progress=race)
    assert bytes(obstore.get(S3Store(BUCKET), key).bytes()) == b"somebody else's"
    assert [name for name in names() if name.startswith("raced/") and name != key and str(size) in name] == []
    assert "workspace_archived" not in [event.event_type for event in workspaces.events()]


def test_a_directory_of_a_bucket_gets_a_name_and_may_be_the_setting(workspaces: Local, desk: str) -> None:
    done = workspaces.archive(desk, f"s3://{BUCKET}/dated/")
    assert done.path.startswith(f"s3://{BUCKET}/dated/fix.a.")
    home = workspaces._home
    said = home.settings.workspaces.replace(archives_path=f"s3://{BUCKET}/default")
    home.settings = home.settings.replace(workspaces=said)
    assert workspaces.archive(desk).path.startswith(f"s3://{BUCKET}/default/fix.a.")


def test_what_cannot_be_reached_is_said(
    workspaces: Local, desk: str, monkeypatch: pytest.MonkeyPatch, server: dict[str, str]
) -> None:
    with pytest.raises(ArchiveNotFound):
        workspaces.create(f"archive:s3://{BUCKET}/none", id="new/a")
    with pytest.raises(InvalidUsage) as caught:
        workspaces.archive(desk, "s3://key:secret@host/x")
    assert "secret" not in caught.value.message
    import obstore
    from obstore.store import S3Store

    obstore.put(S3Store(BUCKET), "rubbish", b"rubbish" * 1000)
    with pytest.raises(ArchiveDamaged):
        workspaces.create(f"archive:s3://{BUCKET}/rubbish", id="new/a")
    with monkeypatch.context() as other:
        other.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        other.setenv("AWS_MAX_RETRIES", "0")
        with pytest.raises(BucketUnavailable):
            workspaces.archive(desk, f"s3://{BUCKET}/x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(PermissionDenied) as refused:
        workspaces.archive(desk, f"s3://{BUCKET}/x")
    assert "wrong" not in refused.value.message
    assert [each.id for each in workspaces.list()] == [desk]
    assert workspaces.repair() == []


def test_without_the_package_it_is_said_what_is_missing(
    workspaces: Local, desk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    for act in (
        lambda: workspaces.archive(desk, f"s3://{BUCKET}/x"),
        lambda: workspaces.verify_archive(f"s3://{BUCKET}/x"),
    ):
        with pytest.raises(ToolMissing) as caught:
            act()
        assert caught.value.hint == install_command("s3")

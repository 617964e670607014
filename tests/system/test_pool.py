"""Connections that stay open between uses: never one to a file that was replaced, never one of a parent process."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from workstead.snapshots.objects import Store
from workstead.system.files.pool import Pool, identify


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def test_a_connection_is_used_again_while_its_file_is_in_place(tmp_path: Path) -> None:
    path, pool = tmp_path / "a.db", Pool()
    connection = _connect(path)
    connection.execute("CREATE TABLE t (x)")
    pool.give(connection, identify(str(path)))
    found = pool.take(str(path))
    assert found is not None
    assert found[0] is connection
    assert pool.take(str(path)) is None
    pool.give(*found)
    path.rename(tmp_path / "b.db")
    _connect(path).execute("CREATE TABLE t (x)")
    assert pool.take(str(path)) is None


def test_a_connection_inside_a_transaction_does_not_return(tmp_path: Path) -> None:
    path, pool = tmp_path / "a.db", Pool()
    connection = _connect(path)
    connection.execute("CREATE TABLE t (x)")
    connection.execute("BEGIN")
    pool.give(connection, identify(str(path)))
    assert pool.take(str(path)) is None


def test_a_child_process_does_not_use_the_connections_of_its_parent(tmp_path: Path) -> None:
    path, pool = tmp_path / "a.db", Pool()
    connection = _connect(path)
    connection.execute("CREATE TABLE t (x)")
    pool.give(connection, identify(str(path)))
    with pool.turn_to_write(1.0):
        child = os.fork()
        if child == 0:
            is_free = pool.take(str(path)) is None
            with pool.turn_to_write(60.0):
                pool.close()
            os._exit(0 if is_free else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert pool.take(str(path)) is not None


def _syncs_of(script: str, tmp_path: Path) -> int:
    import subprocess
    import sys

    trace = tmp_path / "trace"
    calls = "trace=fsync,fdatasync,syncfs,sync"
    subprocess.run(["strace", "-f", "-qq", "-o", trace, "-e", calls, sys.executable, "-c", script], check=True)
    return len(trace.read_text().splitlines())


_PUT = """
from workstead.snapshots.objects import Store
from workstead.system.files.pool import Pool
pool = Pool() if {pooled} else None
for number in range({times}):
    with Store({path!r}, pool=pool) as store, store.writer() as writer:
        writer.put(b"content %d" % number)
        writer.commit()
import os
os._exit(0)
"""


def test_a_pack_costs_two_syncs_and_the_index_none(tmp_path: Path) -> None:
    def price(*, pooled: bool) -> int:
        """What ten more packs cost."""
        counts = [
            _syncs_of(_PUT.format(pooled=pooled, times=times, path=str(tmp_path / f"{pooled}-{times}")), tmp_path)
            for times in (5, 15)
        ]
        return counts[1] - counts[0]

    assert price(pooled=True) == 20
    assert price(pooled=False) > 20


def test_an_index_that_was_removed_is_made_again(tmp_path: Path) -> None:
    pool = Pool()
    digests = []
    for content in (b"one" * 50, b"two" * 50):
        with Store(str(tmp_path / "store"), pool=pool) as store, store.writer() as writer:
            digests.append(writer.put(content))
            writer.commit()
        for name in ("index.db", "index.db-wal", "index.db-shm"):
            (tmp_path / "store" / name).unlink(missing_ok=True)
    with Store(str(tmp_path / "store"), pool=pool) as store:
        assert [store.get(digest)[:3] for digest in digests] == [b"one", b"two"]

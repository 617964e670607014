"""Run git, in one hardened way only.

The program runs with an environment made from scratch, and with every setting pinned that could name another program or
another directory (SECURITY.md, G6 and G7). It only sees our own bare mirrors, or a user's repository that is only read;
never an agent's `.git`, index or work tree. It does not check out files either: see `repository`.
"""

from __future__ import annotations

import os

from workstead.errors import TimedOut, ToolFailed, ToolMissing
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import IO

_PATH = "/usr/local/bin:/usr/bin:/bin:/run/current-system/sw/bin:/opt/homebrew/bin"
_MAX_BYTES = 256 << 20
_TAIL_LINES = 20

_PINS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.pager": "cat",
    "core.editor": "false",
    "core.askPass": "false",
    "core.sshCommand": "false",
    "core.gitProxy": "false",
    "core.alternateRefsCommand": "false",
    "core.protectNTFS": "true",
    "core.protectHFS": "true",
    "credential.helper": "",
    "diff.external": "",
    "protocol.allow": "never",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "log.showSignature": "false",
    "gpg.program": "false",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "fetch.writeCommitGraph": "false",
    "fetch.unpackLimit": "1",  # one pack, whose size can be limited, instead of any number of loose objects
    "transfer.unpackLimit": "1",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "transfer.fsckObjects": "true",
    "safe.bareRepository": "explicit",
    "uploadpack.packObjectsHook": "",
    "init.templateDir": "",
    "http.followRedirects": "false",
    "http.proxy": "",
    "advice.detachedHead": "false",
}


def find_git() -> str:
    """Return the git program, from the system's own directories only: never from a workspace on the user's PATH."""
    for directory in _PATH.split(":"):
        path = f"{directory}/git"
        if os.access(path, os.X_OK):
            return path
    raise ToolMissing("git is not installed", hint="apt install git, dnf install git, or see git-scm.com/downloads")


class Git(Value):
    """How to call git: directory, protocols, settings, timeout and limits."""

    state: str  # a directory of ours: working directory, and an empty HOME inside it
    protocols: str = ""  # permitted protocols, in the format of GIT_ALLOW_PROTOCOL; none by default
    config: dict[str, str]  # additional settings, which override the pinned ones
    timeout_seconds: float = 1800.0
    failure: type[ToolFailed] = ToolFailed
    file_bytes: int | None = None  # maximum size of a file: the kernel kills git when it writes more

    def run(
        self,
        *arguments: str,
        git_dir: str | None = None,
        environment: Mapping[str, str] | None = None,
        feed: bytes | None = None,
        progress: Callable[[str], None] | None = None,
        max_bytes: int = _MAX_BYTES,
        watch: Callable[[bytes], None] | None = None,
    ) -> bytes:
        """Run git and return its output; raise `failure` with its last lines if it fails.

        `watch` is called with every piece of output as it arrives; if it raises, git is killed.
        """
        import subprocess
        import tempfile

        with tempfile.TemporaryFile() as given:
            given.write(feed or b"")
            given.seek(0)
            process = subprocess.Popen(
                self.command(*arguments, git_dir=git_dir),
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.state,
                env=self.environment(environment),
                start_new_session=True,
                umask=0o022,
            )
            if self.file_bytes is not None:
                import resource

                # The pack is written by a child that git starts after it has talked to the origin.
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (self.file_bytes, self.file_bytes))
        output, errors = self._collect(process, arguments, progress, max_bytes, watch)
        if process.returncode != 0:
            raise self.said_no(arguments, process.returncode, errors)
        return output

    def command(self, *arguments: str, git_dir: str | None) -> list[str]:
        command = [find_git()]
        for name, value in {**_PINS, **self.config}.items():
            command += ["-c", f"{name}={value}"]
        if git_dir is not None:
            command.append(f"--git-dir={git_dir}")
        return [*command, *arguments]

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        home = f"{self.state}/nobody"
        os.makedirs(home, 0o700, exist_ok=True)
        return {
            "PATH": _PATH,
            "HOME": home,
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/false",
            "SSH_ASKPASS": "/bin/false",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_CEILING_DIRECTORIES": self.state,
            "GIT_ALLOW_PROTOCOL": self.protocols,
            **(more or {}),
        }

    def said_no(self, arguments: Sequence[str], code: int, errors: bytes) -> ToolFailed:
        tail = tail_of(errors)
        last = next(
            (line for line in reversed(tail) if line.startswith(("fatal:", "error:"))), tail[-1] if tail else ""
        )
        return self.failure(
            f"git {arguments[0]} failed: {last or f'exit code {code}'}",
            details={"argv": ["git", *(scrub(argument) for argument in arguments)], "exit_code": code, "lines": tail},
        )

    def _collect(
        self,
        process: subprocess.Popen[bytes],
        arguments: Sequence[str],
        progress: Callable[[str], None] | None,
        max_bytes: int,
        watch: Callable[[bytes], None] | None,
    ) -> tuple[bytes, bytes]:
        """Read both pipes until their end, the timeout or the size limit."""
        import selectors
        import time

        deadline = time.monotonic() + self.timeout_seconds
        output, errors = bytearray(), bytearray()
        assert process.stdout
        assert process.stderr
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ, output)
                selector.register(process.stderr, selectors.EVENT_READ, errors)
                while selector.get_map():
                    left = deadline - time.monotonic()
                    ready = selector.select(max(left, 0.0)) if left > 0 else []
                    if not ready:
                        raise TimedOut(f"git {arguments[0]} took longer than {self.timeout_seconds:.0f} s")
                    for key, _ in ready:
                        chunk = os.read(key.fd, 1 << 16)
                        if not chunk:
                            selector.unregister(key.fileobj)
                        key.data.extend(chunk)
                        if watch and key.data is output:
                            watch(chunk)
                    if len(output) > max_bytes:
                        raise self.failure(f"git {arguments[0]} printed more than {max_bytes >> 20} MB")
                    if progress and b"%" in errors[-200:]:
                        progress(_last_progress(errors))
                    del errors[:-65536]
            process.wait()
        finally:
            if process.poll() is None:
                _kill(process)
            process.stdout.close()
            process.stderr.close()
        return bytes(output), bytes(errors)

    def read_objects(self, ids: Sequence[str], git_dir: str) -> Iterator[bytes]:
        """Yield the content of these objects, in this order."""
        import subprocess
        import tempfile
        import threading

        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
            given.write("\n".join([*ids, ""]).encode())
            given.seek(0)
            process = subprocess.Popen(
                self.command("cat-file", "--batch", "--buffer", git_dir=git_dir),
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self.state,
                env=self.environment(),
                start_new_session=True,
            )
            watchdog = threading.Timer(self.timeout_seconds, _kill, [process])
            watchdog.daemon = True
            watchdog.start()
            assert process.stdout
            try:
                for wanted in ids:
                    yield self._read_object(process.stdout, wanted)
                process.wait()
            finally:
                watchdog.cancel()
                if process.poll() is None:
                    _kill(process)
                process.stdout.close()

    def _read_object(self, stream: IO[bytes], wanted: str) -> bytes:
        words = stream.readline().split()
        if len(words) != 3 or words[0].decode() != wanted:
            raise self.failure(f"git has no object {wanted}")
        size = int(words[2])
        content = stream.read(size)
        if len(content) != size or stream.read(1) != b"\n":
            raise self.failure(f"git stopped in the middle of object {wanted}")
        return content


def _kill(process: subprocess.Popen[bytes]) -> None:
    import signal

    try:
        os.killpg(process.pid, signal.SIGKILL)  # it leads its own session
    except ProcessLookupError:
        return
    finally:
        process.wait()


def _last_progress(errors: bytearray) -> str:
    lines = bytes(errors[-400:]).replace(b"\r", b"\n").split(b"\n")
    return next(line for line in reversed(lines) if b"%" in line).decode(errors="replace").strip()


def scrub(text: str) -> str:
    """Return the text without user names and passwords in URLs."""
    head, mark, rest = text.partition("://")
    if not mark:
        return text
    authority, slash, path = rest.partition("/")
    return f"{head}://{authority.rpartition('@')[2]}{slash}{scrub(path)}"


def tail_of(errors: bytes) -> list[str]:
    """Return the last lines that git wrote, without progress and without secrets."""
    lines = errors.decode(errors="replace").split("\n")
    return [scrub(line.rpartition("\r")[2]) for line in lines if line.strip() and "\r" not in line][-_TAIL_LINES:]

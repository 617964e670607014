"""The verbs over HTTP: `workstead.connect(url, token)`.

Each verb is one request; it returns the values and raises the errors of the verb itself. Requests that are safe to
repeat are retried when the connection breaks: reads, and requests with an idempotency key, as every POST that creates
something has. Everything is synchronous; from asynchronous code, call it in a worker thread: `await
asyncio.to_thread(workspaces.create, "empty")`. One object may be used by several threads.
"""

from __future__ import annotations

import json
import os
import time
from base64 import b64decode, b64encode
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from workstead.errors import (
    BY_CODE,
    InvalidId,
    InvalidUsage,
    NotFound,
    RangeNotSatisfiable,
    TimedOut,
    ToolMissing,
    Unavailable,
    WorkspaceNotFound,
    WorksteadError,
)
from workstead.installation import install_command
from workstead.model.names import check_part, parse_id
from workstead.model.public import (
    Applied,
    Approval,
    Archived,
    Candidate,
    Change,
    Command,
    Comparison,
    Contents,
    Damage,
    Decision,
    Diff,
    Edited,
    Entry,
    Event,
    Explanation,
    FileChange,
    Finding,
    Folder,
    Found,
    Glance,
    Gone,
    KnownArchive,
    Matches,
    Message,
    Mounted,
    Named,
    Operation,
    Overlap,
    Policy,
    Probe,
    Race,
    RecentFolder,
    Restored,
    Run,
    Snapshot,
    Stat,
    Summary,
    Template,
    Token,
    Tree,
    Turn,
    Usage,
    Verification,
    Watching,
    Workspace,
    WorkspaceUsage,
    Written,
)
from workstead.model.source import parse as parse_source

try:
    import httpx2 as httpx
except ImportError:  # pragma: no cover - said when it is used
    raise ToolMissing("httpx2 is not installed", hint=install_command("client")) from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Self

    from workstead.model.edit import Edit
    from workstead.workspaces import Workspaces

TRIES = 4
PATIENCE_SECONDS = 60.0
WAIT_SECONDS = 30  # timeout of one request for the end of a run
SAFE = ("GET", "HEAD")


class Wire:
    """The connection: requests, retries, and errors converted back to exceptions."""

    def __init__(self, url: str, token: str, transport: Any = None) -> None:
        # Ignore proxies in the environment: a proxy must not see the token.
        self._client = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(10.0, read=None),
            trust_env=False,
            transport=transport,
            limits=httpx.Limits(max_connections=200, max_keepalive_connections=50),
        )

    def close(self) -> None:
        self._client.close()

    def ask(self, method: str, target: str, *, headers: Mapping[str, str], **more: Any) -> httpx.Response:
        """Send one request, with retries where they are safe."""
        is_safe = method in SAFE or "Idempotency-Key" in headers
        for attempt in range(TRIES if is_safe else 1):
            try:
                response = self._client.request(method, target, headers=dict(headers), **more)
            except httpx.TransportError as error:
                failure: WorksteadError = Unavailable(
                    f"the server does not answer: {error}", hint="is aw serve running?"
                )
            else:
                if response.is_success:
                    return response
                failure = error_of(response.status_code, response.content)
                if not failure.retryable:
                    raise failure
            if attempt + 1 < TRIES and is_safe:
                time.sleep(0.1 * 3**attempt)
        raise failure

    @contextmanager
    def stream(self, target: str, *, headers: Mapping[str, str], **more: Any) -> Iterator[httpx.Response]:
        """Open a streaming response."""
        try:
            with self._client.stream("GET", target, headers=dict(headers), **more) as response:
                if not response.is_success:
                    raise error_of(response.status_code, response.read())
                yield response
        except httpx.TransportError as error:
            raise Unavailable(f"the server does not answer: {error}", hint="is aw serve running?") from None


def error_of(status: int, body: bytes) -> WorksteadError:
    """Return the error that the server's verb raised."""
    try:
        found = json.loads(body)["error"]
        code, message, hint = str(found["code"]), str(found["message"]), str(found["hint"])
        details = dict(found["details"])
    except (ValueError, KeyError, TypeError):
        return Unavailable(f"the server answered {status} without saying why", hint="is there a proxy in between?")
    kind = BY_CODE.get(code, WorksteadError)
    error = kind.__new__(kind)
    WorksteadError.__init__(error, message, hint=hint, details=details)
    return error


def build(kind: Any, data: Any) -> Any:
    """Build a value from its JSON."""
    import msgspec

    return msgspec.convert(data, kind)


class Remote:
    """`Workspaces` behind a server; see `workspaces.py` for the contract of each verb."""

    def __init__(self, wire: Wire, headers: Mapping[str, str] | None = None) -> None:
        self._wire = wire
        self._headers = dict(headers or {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._wire.close()

    def acting_as(
        self,
        actor_id: str,
        *,
        correlation_id: str = "",
        causation_id: str = "",
        agent_of: str | None = None,
        run_id: str = "",
        wait_seconds: float = 0.0,
    ) -> Self:
        del run_id  # the server knows the run by its token
        given = {"X-AW-Actor": actor_id, "X-Correlation-ID": correlation_id, "X-Causation-ID": causation_id}
        headers = {name: quote(value) for name, value in given.items() if value}
        if agent_of is not None:
            headers["X-AW-Agent-Of"] = quote(agent_of)
        if wait_seconds > 0:
            headers["Prefer"] = f"wait={min(int(wait_seconds) or 1, 60)}"
        return type(self)(self._wire, headers)

    # -- requests --

    def _get(self, target: str, **query: Any) -> Any:
        return _load(self._wire.ask("GET", target, headers=self._headers, params=_params(query)).content)

    def _post(self, target: str, body: Mapping[str, Any] | None = None, *, keyed: bool = False) -> Any:
        headers = {**self._headers, "Content-Type": "application/json"}
        if keyed:
            headers["Idempotency-Key"] = os.urandom(16).hex()
        content = json.dumps({key: value for key, value in (body or {}).items() if value is not None}).encode()
        return _load(self._wire.ask("POST", target, headers=headers, content=content).content)

    def _delete(self, target: str, headers: Mapping[str, str] | None = None, **query: Any) -> Any:
        every = {**self._headers, **(headers or {})}
        return _load(self._wire.ask("DELETE", target, headers=every, params=_params(query)).content)

    # -- lifecycle --

    def create(
        self,
        source: str = "empty",
        *,
        task: str | None = None,
        agent: str | None = None,
        id: str | None = None,
        config: Mapping[str, Any] | None = None,
        lazy: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> Workspace:
        if id is not None and (task is not None or agent is not None):
            raise InvalidId("an id and a task or agent were given", hint="give one or the other")
        parse_source(source)  # fail here, before an invalid source or a password is printed or sent
        if progress is not None:
            progress(f"asking for a workspace from {source}")
        body = {"source": source, "task": task, "agent": agent, "id": id, "config": config, "lazy": lazy or None}
        made: Workspace = build(Workspace, self._post("/api/workspaces", body, keyed=True))
        return made

    def destroy(self, *ids: str, force: bool = False, reason: str = "requested") -> Sequence[Workspace]:
        body = {"ids": [*ids], "force": force, "reason": reason}
        return build(list[Workspace], self._post("/api/destroy", body))  # type: ignore[no-any-return]

    def destroy_task(self, task: str, *, force: bool = False, reason: str = "requested") -> Sequence[Workspace]:
        found = self._delete("/api/workspaces", task_id=check_part(task), force=force, reason=reason)
        return build(list[Workspace], found)  # type: ignore[no-any-return]

    @contextmanager
    def ephemeral(self, source: str = "empty", **options: Any) -> Iterator[Workspace]:
        workspace = self.create(source, **options)
        try:
            yield workspace
        finally:
            self.destroy(workspace.id, force=True, reason="ephemeral")

    def get(self, id: str) -> Workspace:
        return build(Workspace, self._get(_at(id)))  # type: ignore[no-any-return]

    def exists(self, id: str) -> bool:
        try:
            self.get(id)
        except WorkspaceNotFound:
            return False
        return True

    def path(self, id: str) -> str:
        return str(self._get(f"{_at(id)}/path")["path"])

    def public_mount(self, id: str) -> str:
        return str(self._get(f"{_at(id)}/path")["public"])

    def list(self, task: str | None = None, *, all: bool = False) -> Sequence[Workspace]:
        found = self._get("/api/workspaces", task_id=None if task is None else check_part(task), all=all or None)
        return build(list[Workspace], found)  # type: ignore[no-any-return]

    def overview(self, task: str | None = None) -> Sequence[Summary]:
        found = self._get("/api/status", task_id=None if task is None else check_part(task))
        return build(list[Summary], found)  # type: ignore[no-any-return]

    def inject(self, spec: Mapping[str, Any], id: str) -> dict[str, Any]:
        return {**spec, "metadata": {**spec.get("metadata", {}), "workspace": self.path(id)}}

    def pin(self, id: str, *, reason: str = "") -> Workspace:
        return build(Workspace, self._post(f"{_at(id)}/pin", {"reason": reason}))  # type: ignore[no-any-return]

    def unpin(self, id: str) -> Workspace:
        return build(Workspace, self._delete(f"{_at(id)}/pin"))  # type: ignore[no-any-return]

    # -- runs --

    def run(self, id: str, command: Sequence[str], **options: Any) -> Run:
        body = {"command": [*command], **_sent(options)}
        return build(Run, self._post(f"{_at(id)}/runs", body, keyed=True))  # type: ignore[no-any-return]

    def run_new(self, source: str, command: Sequence[str], *, id: str | None = None, **options: Any) -> Run:
        options.pop("progress", None)
        body = {"source": source, "command": [*command], "id": id, **_sent(options)}
        return build(Run, self._post("/api/runs", body))  # type: ignore[no-any-return]

    def run_kept(
        self, id: str, command: Sequence[str], *, write: Callable[[int, bytes], None] | None = None, **options: Any
    ) -> Command:
        done = self._post(f"{_at(id)}/commands", {"command": [*command], **_sent(options)})
        done.update(stdout=b64decode(done["stdout"]), stderr=b64decode(done["stderr"]))
        if write is not None:
            write(1, done["stdout"])
            write(2, done["stderr"])
        return Command(**done)

    def why(self, run_id: str) -> Explanation:
        return build(Explanation, self._get(f"{_run_at(run_id)}/why"))  # type: ignore[no-any-return]

    def get_run(self, run_id: str) -> Run:
        return build(Run, self._get(_run_at(run_id)))  # type: ignore[no-any-return]

    def runs(self, id: str | None = None) -> Sequence[Run]:
        found = self._get("/api/runs" if id is None else f"{_at(id)}/runs")
        return build(list[Run], found)  # type: ignore[no-any-return]

    def wait(self, run_id: str, *, timeout_seconds: float | None = None) -> Run:
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            left = WAIT_SECONDS if end is None else max(0.0, min(WAIT_SECONDS, end - time.monotonic()))
            found: Run = build(Run, self._get(_run_at(run_id), wait=left))
            if not found.is_active:
                return found
            if end is not None and time.monotonic() >= end:
                raise TimedOut(f"run {run_id} is still {found.state} after {timeout_seconds:g} s", hint="stop ends it")

    def stop(self, run_id: str, *, at_once: bool = False) -> Run:
        return build(Run, self._post(f"{_run_at(run_id)}/stop", {"at_once": at_once}))  # type: ignore[no-any-return]

    def output(self, run_id: str, *, follow: bool = False) -> Iterator[tuple[int, int, bytes]]:
        self.get_run(run_id)  # raises at once for an unknown run
        return self._output(run_id, follow)

    def _output(self, run_id: str, follow: bool) -> Iterator[tuple[int, int, bytes]]:
        for _, piece in self._listen(f"{_run_at(run_id)}/output", {"follow": follow, "format": "events"}, None):
            yield _printed(piece)

    def read_output(
        self, run_id: str, offset: int = 0, *, max_bytes: int = 1 << 20
    ) -> tuple[Sequence[tuple[int, int, bytes]], int]:
        found = self._get(f"{_run_at(run_id)}/pieces", offset=offset, max_bytes=max_bytes)
        return [_printed(piece) for piece in found["pieces"]], found["offset"]

    def find_tail(self, run_id: str, offset: int = 0, *, max_bytes: int = 1 << 20) -> int:
        return int(self._get(f"{_run_at(run_id)}/tail", offset=offset, max_bytes=max_bytes)["offset"])

    def converse(self, run_id: str) -> RemoteConversation:
        return RemoteConversation(self, run_id)

    def glance(self, run_id: str, offset: int = 0, line: str = "") -> Glance:
        found = self._get(f"{_run_at(run_id)}/glance", offset=offset, line=line)
        return build(Glance, found)  # type: ignore[no-any-return]

    # -- snapshots and changes --

    def snapshot(self, id: str, *, label: str = "") -> Snapshot:
        found = self._post(f"{_at(id)}/snapshots", {"label": label}, keyed=True)
        return build(Snapshot, found)  # type: ignore[no-any-return]

    def snapshots(self, id: str) -> Sequence[Snapshot]:
        return build(list[Snapshot], self._get(f"{_at(id)}/snapshots"))  # type: ignore[no-any-return]

    def restore(self, id: str, snapshot: str, paths: Sequence[str] = ()) -> tuple[str, Restored]:
        done = self._post(f"{_at(id)}/restore", {"snapshot": snapshot, "paths": [*paths]}, keyed=True)
        return done["operation_id"], build(Restored, done["restored"])

    def diff(
        self,
        id: str,
        *,
        from_: str = "base",
        to: str = "now",
        paths: Sequence[str] = (),
        text: bool = True,
        git_files: bool = False,
        ignored: bool = False,
        context: int = 3,
    ) -> Diff:
        query = {"from": from_, "to": to, "text": text, "git_files": git_files, "ignored": ignored, "context": context}
        found = self._get(f"{_at(id)}/diff", **query, paths="\n".join(paths) or None)
        return build(Diff, found)  # type: ignore[no-any-return]

    def patch(
        self,
        id: str,
        *,
        from_: str = "base",
        to: str = "now",
        paths: Sequence[str] = (),
        git_files: bool = False,
        ignored: bool = False,
        binary: bool = True,
        context: int = 3,
    ) -> Iterator[bytes]:
        query = {"from": from_, "to": to, "git_files": git_files, "ignored": ignored, "binary": binary}
        params = _params({**query, "context": context, "format": "patch", "paths": "\n".join(paths) or None})
        with self._wire.stream(f"{_at(id)}/diff", headers=self._headers, params=params) as response:
            yield from response.iter_raw()

    def status(self, id: str) -> Sequence[Change]:
        return build(list[Change], self._get(f"{_at(id)}/status"))  # type: ignore[no-any-return]

    def apply(
        self,
        id: str,
        paths: Sequence[str] = (),
        *,
        hunks: Mapping[str, Sequence[str]] | None = None,
        to: str | None = None,
        message: str | None = None,
        mark_conflicts: bool = False,
        ignored: bool = False,
    ) -> Applied:
        chosen = None if hunks is None else {path: [*ids] for path, ids in hunks.items()}
        body: dict[str, Any] = {"paths": [*paths], "hunks": chosen, "to": to, "message": message}
        body |= {"mark_conflicts": mark_conflicts, "ignored": ignored}
        return build(Applied, self._post(f"{_at(id)}/apply", body, keyed=True))  # type: ignore[no-any-return]

    def fork(
        self, id: str, *, new_id: str | None = None, count: int = 1, snapshot: str | None = None
    ) -> Sequence[Workspace]:
        body = {"new_id": new_id, "count": count, "snapshot": snapshot}
        return build(list[Workspace], self._post(f"{_at(id)}/fork", body, keyed=True))  # type: ignore[no-any-return]

    def session(self, id: str) -> RemoteSession:
        return RemoteSession(self, id)

    # -- files --

    def read_file(self, id: str, path: str, *, start: int = 0, length: int | None = None) -> bytes:
        headers = dict(self._headers)
        if length == 0:
            return b""
        if start or length is not None:
            headers["Range"] = f"bytes={start}-{'' if length is None else start + length - 1}"
        try:
            return bytes(self._wire.ask("GET", _file_at(id, path), headers=headers).content)
        except RangeNotSatisfiable:
            return b""

    def open_file(self, id: str, path: str) -> RemoteDownload:
        return RemoteDownload(self._wire, _file_at(id, path), self._headers)

    def tar_files(self, id: str, path: str = ".") -> Iterator[bytes]:
        with self._wire.stream(_file_at(id, path), headers=self._headers, params={"format": "tar"}) as response:
            yield from response.iter_raw()

    def read_text(self, id: str, path: str, *, encoding: str = "utf-8") -> str:
        return self.read_file(id, path).decode(encoding)

    def write_file(
        self,
        id: str,
        path: str,
        content: bytes | str | Iterable[bytes],
        *,
        parents: bool = False,
        create_only: bool = False,
        append: bool = False,
        if_digest: str | None = None,
        keep: bool = False,
    ) -> Written:
        headers = {**self._headers, "Content-Type": "application/octet-stream", **_condition(if_digest)}
        data = content.encode() if isinstance(content, str) else content
        query = _params({"parents": parents, "append": append, "create_only": create_only, "keep": keep})
        response = self._wire.ask("PUT", _file_at(id, path), headers=headers, params=query, content=data)
        return build(Written, _load(response.content))  # type: ignore[no-any-return]

    def edit_file(
        self, id: str, path: str, edits: Sequence[Edit], *, dry_run: bool = False, context: int = 3
    ) -> Edited:
        body = {"path": path, "edits": [each.as_dict() for each in edits], "dry_run": dry_run, "context": context}
        return build(Edited, self._post(f"{_at(id)}/edit", body))  # type: ignore[no-any-return]

    def delete_file(
        self, id: str, path: str, *, recursive: bool = False, if_digest: str | None = None, keep: bool = True
    ) -> Gone:
        gone = self._delete(_file_at(id, path), _condition(if_digest), recursive=recursive, keep=keep)
        return build(Gone, gone)  # type: ignore[no-any-return]

    def move_file(
        self, id: str, path: str, to: str, *, replace: bool = False, if_digest: str | None = None, keep: bool = True
    ) -> Gone:
        headers = {**self._headers, **_condition(if_digest), "Content-Type": "application/json"}
        body = json.dumps({"path": path, "to": to, "replace": replace, "keep": keep}).encode()
        response = self._wire.ask("POST", f"{_at(id)}/move", headers=headers, content=body)
        return build(Gone, _load(response.content))  # type: ignore[no-any-return]

    def make_directory(self, id: str, path: str, *, parents: bool = False) -> None:
        self._post(f"{_at(id)}/directories", {"path": path, "parents": parents})

    def list_files(self, id: str, path: str = ".") -> dict[str, Any]:
        return self._get(f"{_at(id)}/tree", path=path)  # type: ignore[no-any-return]

    def tree(self, id: str, path: str = ".") -> Tree:
        return Tree(**self._get(f"{_at(id)}/tree", path=path, counts=True))

    def tree_json(self, id: str, path: str = ".") -> Iterator[bytes]:
        with self._wire.stream(f"{_at(id)}/tree", headers=self._headers, params={"path": path}) as response:
            yield from response.iter_raw()

    def list_directory(self, id: str, path: str = ".") -> tuple[Entry, ...]:
        return build(tuple[Entry, ...], self._get(_file_at(id, path), format="list"))  # type: ignore[no-any-return]

    def stat_file(self, id: str, path: str) -> Stat:
        return build(Stat, self._get(_file_at(id, path), format="stat"))  # type: ignore[no-any-return]

    def list_paths(
        self, id: str, path: str = ".", *, pattern: str = "**", exclude: Sequence[str] = ()
    ) -> Sequence[Named]:
        found = self._get(f"{_at(id)}/paths", path=path, pattern=pattern, exclude="\n".join(exclude) or None)
        return build(list[Named], found)  # type: ignore[no-any-return]

    def search_names(self, id: str, pattern: str, path: str = ".") -> Found:
        return build(Found, self._get(f"{_at(id)}/search", names=pattern, path=path))  # type: ignore[no-any-return]

    def search_text(self, id: str, needle: str, path: str = ".", *, regex: bool = False, names: str = "*") -> Matches:
        found = self._get(f"{_at(id)}/search", text=needle, path=path, regex=regex, names=names)
        return build(Matches, found)  # type: ignore[no-any-return]

    def resolve(self, id: str, path: str) -> str:
        return str(self._get(f"{_at(id)}/resolve", path=path)["path"])

    def adapt_prompt(self, text: str, id: str) -> str:
        return str(self._post(f"{_at(id)}/prompt", {"text": text})["text"])

    # -- archives --

    def archive(
        self,
        id: str,
        to: str | None = None,
        *,
        replace: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Archived:
        del progress  # the server does not report progress
        done = self._post(f"{_at(id)}/archive", {"to": to, "replace": replace}, keyed=True)
        return build(Archived, done)  # type: ignore[no-any-return]

    def verify_archive(self, location: str, progress: Callable[[int, int], None] | None = None) -> Contents:
        del progress  # the server does not report progress
        return build(Contents, self._post("/api/archives/verify", {"location": location}))  # type: ignore[no-any-return]

    def archives(self) -> Sequence[KnownArchive]:
        return build(list[KnownArchive], self._get("/api/archives"))  # type: ignore[no-any-return]

    # -- policy and approvals --

    def policy(self, id: str) -> Policy:
        return build(Policy, self._get(f"{_at(id)}/policy"))  # type: ignore[no-any-return]

    def judge(self, id: str, operation: str, path: str = ".", *, size: int | None = None) -> Decision:
        found = self._get(f"{_at(id)}/judge", operation=operation, path=path, size=size)
        return build(Decision, found)  # type: ignore[no-any-return]

    def change_policy(self, id: str, policy: str | Mapping[str, Any], *, reason: str = "") -> Policy:
        body = {"policy": policy if isinstance(policy, str) else dict(policy), "reason": reason}
        headers = {**self._headers, "Content-Type": "application/json"}
        response = self._wire.ask("PUT", f"{_at(id)}/policy", headers=headers, content=json.dumps(body).encode())
        return build(Policy, _load(response.content))  # type: ignore[no-any-return]

    def approvals(self, id: str | None = None, *, all: bool = False) -> Sequence[Approval]:
        found = self._get("/api/approvals", workspace_id=id, all=all)
        return build(list[Approval], found)  # type: ignore[no-any-return]

    def get_approval(self, approval_id: str) -> Approval:
        return build(Approval, self._get(f"/api/approvals/{_part(approval_id)}"))  # type: ignore[no-any-return]

    def preview(self, approval_id: str) -> str:
        target = f"/api/approvals/{_part(approval_id)}/preview"
        return self._wire.ask("GET", target, headers=self._headers).content.decode()

    def approve(self, *approval_ids: str, comment: str = "", unseen: bool = False) -> Sequence[Approval]:
        return [self._decide(each, "grant", comment, unseen) for each in approval_ids]

    def deny(self, *approval_ids: str, comment: str = "") -> Sequence[Approval]:
        return [self._decide(each, "deny", comment) for each in approval_ids]

    def _decide(self, approval_id: str, decision: str, comment: str, unseen: bool = False) -> Approval:
        body = {"decision": decision, "comment": comment, "unseen": unseen}
        return build(Approval, self._post(f"/api/approvals/{_part(approval_id)}", body))  # type: ignore[no-any-return]

    def approve_all(self, id: str | None = None, *, also_later: bool = False, **choice: Any) -> Sequence[Approval]:
        return self._decide_all("grant", id, {**choice, "also_later": also_later})

    def deny_all(self, id: str | None = None, **choice: Any) -> Sequence[Approval]:
        return self._decide_all("deny", id, choice)

    def _decide_all(self, decision: str, id: str | None, choice: Mapping[str, Any]) -> Sequence[Approval]:
        lists = {key: [*choice[key]] for key in ("operations", "paths") if key in choice}
        body = {"decision": decision, "workspace_id": id, **choice, **lists}
        return build(list[Approval], self._post("/api/approvals", body))  # type: ignore[no-any-return]

    # -- overlaps, races, watching --

    def overlaps(self, id: str | None = None) -> Sequence[Overlap]:
        return build(list[Overlap], self._get("/api/overlaps", workspace_id=id))  # type: ignore[no-any-return]

    def compare(self, ids: Sequence[str]) -> Comparison:
        return build(Comparison, self._get("/api/compare", ids="\n".join(ids)))  # type: ignore[no-any-return]

    def race(
        self,
        source: str,
        command: Sequence[str],
        *,
        count: int,
        progress: Callable[[str], None] | None = None,
        watch: Callable[[Race], None] | None = None,
        **options: Any,
    ) -> Race:
        del progress, watch  # poll `get_race` for the progress
        body = {"source": source, "command": [*command], "count": count, **_sent(options)}
        return build(Race, self._post("/api/races", body, keyed=True))  # type: ignore[no-any-return]

    def get_race(self, name: str) -> Race:
        return build(Race, self._get(f"/api/races/{_part(name)}"))  # type: ignore[no-any-return]

    def races(self) -> Sequence[Race]:
        return build(list[Race], self._get("/api/races"))  # type: ignore[no-any-return]

    def watch(
        self,
        id: str,
        *,
        until: Callable[[], bool] | None = None,
        timeout_seconds: float | None = None,
        debounce_seconds: float | None = None,
        note: Callable[[str], None] | None = None,
    ) -> Iterator[FileChange]:
        del debounce_seconds, note  # the server's settings apply
        self.get(id)
        changes = (build(FileChange, data) for data in self._changes(id))
        if until is None and timeout_seconds is None:
            return changes
        return _attended(changes, until or (lambda: False), timeout_seconds)

    def _changes(self, id: str) -> Iterator[Any]:
        with self._wire.stream(f"{_at(id)}/watch", headers=self._headers) as response:
            for name, _, data in _events(_lines(response.iter_raw())):
                if name == "end":
                    return
                yield json.loads(data)

    def start_watching(self, id: str) -> Watching:
        return build(Watching, self._post(f"{_at(id)}/watching"))  # type: ignore[no-any-return]

    def stop_watching(self, id: str) -> Watching | None:
        return build(Watching | None, self._delete(f"{_at(id)}/watching"))  # type: ignore[no-any-return]

    def watching(self) -> Sequence[Watching]:
        return build(list[Watching], self._get("/api/watching"))  # type: ignore[no-any-return]

    # -- undo and retention --

    def operations(self) -> Sequence[Operation]:
        return build(list[Operation], self._get("/api/operations"))  # type: ignore[no-any-return]

    def undo(self, operation_id: str | None = None) -> tuple[Operation, Sequence[Workspace]]:
        done = self._post("/api/undo", {"operation_id": operation_id}, keyed=True)
        return build(Operation, done["operation"]), build(list[Workspace], done["workspaces"])

    def trash(self) -> Sequence[Workspace]:
        return build(list[Workspace], self._get("/api/trash"))  # type: ignore[no-any-return]

    def restore_trashed(self, name: str, *, new_id: str | None = None) -> Workspace:
        found = self._post(f"/api/trash/{_part(name)}/restore", {"new_id": new_id})
        return build(Workspace, found)  # type: ignore[no-any-return]

    def sweep(
        self,
        *,
        dry_run: bool = False,
        everything: bool = False,
        uids: Sequence[str] = (),
        free_bytes: int | None = None,
    ) -> Sequence[Candidate]:
        body = {"dry_run": dry_run, "everything": everything, "uids": [*uids], "free_bytes": free_bytes}
        return build(list[Candidate], self._post("/api/sweep", body))  # type: ignore[no-any-return]

    # -- the log --

    def events(
        self, *, after: int = 0, task: str | None = None, types: Sequence[str] = (), limit: int | None = None
    ) -> Iterator[Event]:
        query = {"task_id": None if task is None else check_part(task), "type": ",".join(types) or None}
        left = limit
        while left is None or left > 0:
            size = 1000 if left is None else min(left, 1000)
            found: Sequence[Event] = build(list[Event], self._get("/api/events", after=after, limit=size, **query))
            yield from found
            if len(found) < size:
                return
            after = found[-1].position
            left = None if left is None else left - len(found)

    def follow(
        self,
        *,
        after: int | None = None,
        task: str | None = None,
        types: Sequence[str] = (),
        until: Callable[[], bool] | None = None,
        timeout_seconds: float | None = None,
    ) -> Iterator[Event]:
        query = {"follow": True, "task_id": task, "type": ",".join(types) or None}
        start = self.last_position() if after is None else after
        events = (build(Event, data) for _, data in self._listen("/api/events", _params(query), start))
        if until is None and timeout_seconds is None:
            return events
        return _attended(events, until or (lambda: False), timeout_seconds)

    def history(self, id: str) -> Iterator[Event]:
        yield from build(list[Event], self._get(f"{_at(id)}/history"))

    def last_position(self) -> int:
        return int(self._get("/api/events/last")["position"])

    def _listen(self, target: str, query: Mapping[str, Any], after: int | None) -> Iterator[tuple[int, Any]]:
        """Yield (id, data) of server-sent events, resuming after a broken connection, until the server sends the end.

        An unreachable server raises after a few retries; one that was reachable before is retried for the time of a
        restart.
        """
        seen, failures = after, 0
        lost_at: float | None = None
        while True:
            headers = dict(self._headers) if seen is None else {**self._headers, "Last-Event-ID": str(seen)}
            is_open = False
            try:
                with self._wire.stream(target, headers=headers, params=_params(query)) as response:
                    is_open, failures = True, 0
                    for name, number, data in _events(_lines(response.iter_raw())):
                        if name == "end":
                            return
                        if number is not None:
                            seen = number
                            yield number, json.loads(data)
            except Unavailable:
                failures += 1
                is_missed = lost_at is None or time.monotonic() - lost_at > PATIENCE_SECONDS
                if not is_open and is_missed and failures >= TRIES:
                    raise
            if is_open:
                lost_at = time.monotonic()
            time.sleep(min(0.1 * 3**failures, 2.0))

    def verify_if_due(self, is_stopping: Callable[[], bool]) -> float | None:
        raise InvalidUsage("a server verifies by itself when it is time", hint="verify() verifies now")

    def damage(self) -> Sequence[Damage]:
        raise InvalidUsage("what is damaged is shown where the home is", hint="doctor() says whether something is")

    def verify(
        self,
        progress: Callable[[int, int], None] | None = None,
        *,
        deep: bool = False,
        reading: Callable[[str, int], None] = lambda _name, _bytes: None,
    ) -> Verification:
        if deep:
            raise InvalidUsage("everything is read where the home is", hint="aw verify --deep, on the server's machine")
        del progress  # the server does not report progress
        return Verification(**self._get("/api/verify"), broken=None)

    # -- folders, mail, health, templates, tokens --

    def open_folder(self, folder: str) -> RecentFolder:
        return build(RecentFolder, self._post("/api/recent", {"folder": folder}))  # type: ignore[no-any-return]

    def recent(self) -> Sequence[RecentFolder]:
        return build(list[RecentFolder], self._get("/api/recent"))  # type: ignore[no-any-return]

    def browse(self, folder: str) -> Folder:
        return build(Folder, self._get("/api/folders", path=folder))  # type: ignore[no-any-return]

    def origin_changes(self, id: str, *, limit: int = 100) -> Sequence[str]:
        return self._get(f"{_at(id)}/origin", limit=limit)  # type: ignore[no-any-return]

    def send_message(self, id: str, text: str, *, sender: str | None = None) -> Message:
        found = self._post(f"{_at(id)}/messages", {"text": text, "sender": sender}, keyed=True)
        return build(Message, found)  # type: ignore[no-any-return]

    def messages(self, id: str) -> Sequence[Message]:
        return build(list[Message], self._get(f"{_at(id)}/messages"))  # type: ignore[no-any-return]

    def get_message(self, id: str, message_id: str) -> Message:
        for message in self.messages(id):
            if message.id == message_id:
                return message
        raise NotFound(f"there is no message {message_id}", hint="messages lists them")

    def repair(
        self, *, rebuild_views: bool = False, accept_log: bool = False, adopt: bool = False
    ) -> Sequence[Finding]:
        if adopt:
            raise InvalidUsage("a home is adopted where it is", hint="aw repair --adopt on the machine of the server")
        found = self._post("/api/repair", {"rebuild_views": rebuild_views, "accept_log": accept_log})
        return build(list[Finding], found)  # type: ignore[no-any-return]

    def usage(self, id: str | None = None) -> Usage:
        found = self._get("/api/usage" if id is None else f"{_at(id)}/usage")
        return build(Usage, found)  # type: ignore[no-any-return]

    def usage_of(self, id: str) -> WorkspaceUsage:
        return build(WorkspaceUsage, self._get(f"{_at(id)}/usage", alone=True))  # type: ignore[no-any-return]

    def machines(self, id: str | None = None) -> Sequence[Mounted]:
        return build(list[Mounted], self._get("/api/machines", workspace_id=id))  # type: ignore[no-any-return]

    def mount(
        self, id: str, *, sandbox: str = "vm", progress: Callable[[str], None] | None = None
    ) -> Sequence[Mounted]:
        if sandbox != "vm":
            raise InvalidUsage(f"the sandbox {sandbox} has no machines", hint="vm has")
        if progress is not None:
            progress(f"asking for a machine for {id}")
        return build(list[Mounted], self._post(f"{_at(id)}/machine"))  # type: ignore[no-any-return]

    def unmount(self, id: str) -> Sequence[Mounted]:
        return build(list[Mounted], self._delete(f"{_at(id)}/machine"))  # type: ignore[no-any-return]

    def build_guest(self, *, progress: Callable[[str], None] | None = None) -> str:
        del progress
        raise InvalidUsage("the guest of machines is built where they run", hint="aw vm build, on the server's machine")

    def sweep_if_due(self) -> float | None:
        raise InvalidUsage("a server sweeps by itself when it is time", hint="sweep() sweeps now")

    def doctor(self) -> Sequence[Probe]:
        return build(list[Probe], self._get("/api/doctor"))  # type: ignore[no-any-return]

    def add_template(self, name: str, *, folder: str | None = None, workspace: str | None = None) -> Template:
        body = {"name": name, "folder": folder, "workspace": workspace}
        return build(Template, self._post("/api/templates", body))  # type: ignore[no-any-return]

    def templates(self) -> Sequence[Template]:
        return build(list[Template], self._get("/api/templates"))  # type: ignore[no-any-return]

    def remove_template(self, name: str) -> None:
        self._delete(f"/api/templates/{_part(name)}")

    def create_token(self, id: str, *, label: str = "", expires_seconds: float | None = None) -> tuple[Token, str]:
        made = self._post("/api/tokens", {"workspace_id": id, "label": label, "expires_seconds": expires_seconds})
        return build(Token, made["token"]), made["text"]

    def tokens(self, id: str | None = None) -> Sequence[Token]:
        return build(list[Token], self._get("/api/tokens", workspace_id=id))  # type: ignore[no-any-return]

    def revoke_token(self, token_id: str) -> Token:
        return build(Token, self._delete(f"/api/tokens/{_part(token_id)}"))  # type: ignore[no-any-return]


class RemoteSession:
    """A workspace used by a chat product; see `flows/session.py`."""

    def __init__(self, remote: Remote, id: str) -> None:
        self._remote = remote
        self.workspace = remote.get(id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Clean up nothing: the workspace and its turns stay."""

    def respond(self, message: str) -> Turn:
        found = self._remote._post(f"{_at(self.workspace.id)}/turns", {"message": message})
        return build(Turn, found)  # type: ignore[no-any-return]

    def turns(self) -> list[Turn]:
        return build(list[Turn], self._remote._get(f"{_at(self.workspace.id)}/turns"))  # type: ignore[no-any-return]

    def restore(self, turn: Turn | str) -> None:
        name = turn if isinstance(turn, str) else turn.snapshot_id
        by_hash = next((each.snapshot_id for each in self.turns() if each.hash == name), name)
        self._remote.restore(self.workspace.id, by_hash)

    def reset(self) -> None:
        self._remote.restore(self.workspace.id, "base")


class RemoteConversation:
    """A connection to a run's terminal; see `verbs/run_io.py`."""

    def __init__(self, remote: Remote, run_id: str) -> None:
        self._remote, self._target = remote, f"{_run_at(run_id)}/terminal"
        self.type(b"")  # raises at once for a run that has ended

    def type(self, data: bytes) -> None:
        """Send typed bytes."""
        self._remote._post(self._target, {"base64": b64encode(data).decode()})

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal."""
        size = {"rows": max(1, min(rows, 500)), "columns": max(1, min(columns, 1000))}
        self._remote._post(self._target, size)

    def close(self) -> None:
        """Disconnect; the run continues."""


class RemoteDownload:
    """A file on the server, read in pieces; see `verbs/download.py`."""

    def __init__(self, wire: Wire, target: str, headers: Mapping[str, str]) -> None:
        self._wire, self._target, self._headers = wire, target, headers
        known = wire.ask("HEAD", target, headers=headers).headers
        self.size = int(known["content-length"])
        self.tag: str | None = known.get("etag", "").strip('"') or None
        self.digest = None if self.tag is None or self.tag.startswith("stat-") else self.tag

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: no connection is held open."""

    def pieces(self, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Yield the bytes, or a range of them."""
        wanted = self.size - start if length is None else min(length, self.size - start)
        if wanted <= 0:
            return
        headers = {**self._headers, "Range": f"bytes={start}-{start + wanted - 1}"}
        with self._wire.stream(self._target, headers=headers) as response:
            yield from response.iter_raw()


# -- encoding of requests and responses --------------------------------------------------------------------------------


def _part(text: str) -> str:
    """Quote one segment of a URL path; a segment of dots would be normalized away."""
    encoded = quote(text, safe="")
    return encoded.replace(".", "%2E") if set(encoded) == {"."} else encoded


def _at(id: str) -> str:
    return "/api/workspaces/" + "/".join(map(_part, parse_id(id)))


def _file_at(id: str, path: str) -> str:
    if not isinstance(path, str):
        raise TypeError("a path is text")
    raw = path.encode("utf-8", "surrogateescape")
    steps = (quote(step, safe="") for step in raw.split(b"/"))
    return f"{_at(id)}/files/" + "/".join(step.replace(".", "%2E") if set(step) == {"."} else step for step in steps)


def _run_at(run_id: str) -> str:
    return f"/api/runs/{_part(run_id)}"


def _params(query: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters that are not None, as text."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in query.items()
        if value is not None
    }


def _sent(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: dict(value) if key == "environment" and value else value for key, value in options.items()}


def _condition(if_digest: str | None) -> dict[str, str]:
    return {} if if_digest is None else {"If-Match": f'"{if_digest}"'}


def _printed(piece: Mapping[str, Any]) -> tuple[int, int, bytes]:
    text = piece.get("text")
    data = b64decode(piece["base64"]) if text is None else text.encode()
    return 1 if piece["stream"] == "stdout" else 2, piece["time_ns"], data


def _load(content: bytes) -> Any:
    return json.loads(content) if content else None


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    """Yield lines that end with a line feed; httpx would also split at separators that JSON allows within text."""
    left = b""
    for piece in pieces:
        *whole, left = (left + piece).split(b"\n")
        for line in whole:
            yield line.decode()


def _events(lines: Iterator[str]) -> Iterator[tuple[str, int | None, str]]:
    """Yield (name, id, data) of each server-sent event."""
    name, number, data = "", None, ""
    for line in lines:
        if line.startswith("id: "):
            number = int(line[4:])
        elif line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            data += line[6:]
        elif not line and data:
            yield name, number, data
            name, number, data = "", None, ""


def _attended(events: Iterator[Any], until: Callable[[], bool], timeout_seconds: float | None) -> Iterator[Any]:
    """Yield the events, read by a thread, until `until` returns true (polled five times a second) or the timeout."""
    import queue
    import threading

    found: queue.Queue[Any] = queue.Queue(1000)

    def read() -> None:
        try:
            for event in events:
                found.put(event)
            found.put(None)
        except BaseException as error:
            found.put(error)

    threading.Thread(target=read, name="follow", daemon=True).start()
    idle_since = time.monotonic()
    while not until():
        try:
            item = found.get(timeout=0.2 if timeout_seconds is None else min(0.2, timeout_seconds))
        except queue.Empty:
            if timeout_seconds is not None and time.monotonic() - idle_since >= timeout_seconds:
                return
            continue
        if item is None:
            return
        if isinstance(item, BaseException):
            raise item
        idle_since = time.monotonic()
        yield item


if TYPE_CHECKING:

    def _is_complete(remote: Remote) -> Workspaces:
        """The type checker compares every verb with its contract."""
        return remote

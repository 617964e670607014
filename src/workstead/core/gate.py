"""The gate: apply the workspace's policy to an agent's request, on the actual facts, right before the effect.

    judge → allow: proceed · deny: PolicyDenied · ask: if there is a grant, use it and proceed; else back out, request
    an approval, wait up to the caller's timeout, and retry

The policy is applied last, when path and content are known and can no longer be swapped (no race between check and
use). A grant is valid for one path and for the digests of the old and the new content: if either has changed, it does
not match, and a new approval is requested. Before an agent overwrites or deletes something a snapshot is taken, so that
a mistake, also an approved one, can be undone.

The owner passes at no cost. A verb that is not in `AGENTS_MAY` is for the owner only; so is every new verb.
"""

from __future__ import annotations

import time

from workstead.core import lookup
from workstead.errors import DiskFull, FileChanged, Forbidden, PolicyDenied, WrongStatus
from workstead.model.approval import Request
from workstead.model.policy import AGENT, asks_for_content, decide, differs_below, strictest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Never, TypeVar

    from workstead.core.home import Home
    from workstead.core.previews import Preview as Kept
    from workstead.core.resolved_path import Spot
    from workstead.model.policy import Decision, Policy
    from workstead.model.value import Value
    from workstead.model.workspace import Workspace
    from workstead.system.files.resolved_entry import Held

    Result = TypeVar("Result")
    Preview = Callable[[], Iterable[bytes]]

# Verbs that an agent may call, on its own workspace and under its policy. All others are refused.
AGENTS_MAY = frozenset(
    {
        *("get", "exists", "list", "create", "destroy", "fork"),
        *("run", "run_kept", "get_run", "runs", "wait", "stop", "output", "why"),
        *("snapshot", "snapshots", "restore", "diff", "patch", "status", "apply", "session"),
        *("read_file", "read_text", "write_file", "edit_file", "delete_file", "move_file", "make_directory"),
        *("list_files", "tree", "tree_json", "list_directory", "list_paths", "stat_file", "search_names"),
        *("search_text", "resolve", "adapt_prompt"),
        *("open_file", "tar_files", "read_output", "public_mount", "usage"),
        *("events", "follow", "last_position", "messages", "get_message", "send_message"),
        *("approvals", "get_approval", "preview", "policy", "judge"),
        # Needed by a door to make an agent's call idempotent, even if the process that executes it dies.
        *("caused_by", "accept_call", "get_call", "hold_call", "effects_of", "end_call", "start_call", "settle"),
        *("by_uid", "operations", "acting_as", "close", "clean_up", "let_go"),
    }
)
_TRIES = 5  # retries of a change to a file that another process keeps changing


def close_to_agents(verbs: object) -> None:
    """Replace every verb that agents may not call by a refusal."""
    for name in dir(type(verbs)):
        if not name.startswith("_") and name not in AGENTS_MAY:
            verbs.__dict__[name] = _refusal(name)


def _refusal(name: str) -> Callable[..., Never]:
    def refuse(*_: object, **__: object) -> Never:
        raise Forbidden(f"{name} is for the owner, not for an agent", hint="ask the owner")

    return refuse


def is_agent(home: Home) -> bool:
    """Return whether the caller is subject to the policy."""
    return home.caller.agent_of is not None


def refuse_agents(home: Home, what: str) -> None:
    """Refuse an operation that only the owner may request."""
    if is_agent(home):
        raise Forbidden(f"{what} is for the owner, not for an agent", hint="ask the owner")


def refuse_confined(home: Home, what: str) -> None:
    """Refuse an operation to an agent that is confined to one workspace."""
    if home.caller.agent_of:
        raise Forbidden(f"{what} is not for an agent of one workspace", hint="ask the owner")


def hand_down(home: Home, agent_of: str | None) -> str | None:
    """Return the workspace that the caller may act for: an agent stays an agent and gets no other workspace."""
    own = home.caller.agent_of
    if own is None or own == agent_of or (own == "" and agent_of is not None):
        return agent_of if agent_of in (None, "") else lookup.normal_id(str(agent_of))
    raise Forbidden("an agent cannot act for anybody else", hint="ask the owner")


class Verdict:
    """Permission to act: events to record together with the effect, and fields for the event of a file change."""

    def __init__(
        self, facts: Sequence[Value] = (), change: dict[str, Any] | None = None, *, tells: bool = True
    ) -> None:
        self.facts = tuple(facts)
        self.change = change or {}
        self.tells = tells  # whether the caller may learn the digest of the previous content


_FREE = Verdict()


class Gate:
    """The owner's gate, always open. With `keep`, a snapshot is taken before content is overwritten or deleted."""

    judges = False

    def __init__(self, home: Home, *, keeps: bool) -> None:
        self.keeps = keeps
        self._home = home
        self._tries = 0

    def file(self, spot: Spot, operation: str, held: Held, *, to: Held | None = None, **_: Any) -> Verdict:
        """Permit an operation on one file or directory."""
        return Verdict((), self._kept(spot, operation, held, to)) if self.keeps else _FREE

    def whole(self, workspace: Workspace, request: Request, decision: Decision, preview: Preview) -> Verdict:
        """Permit an operation on a whole workspace; the caller has already got the policy's decision."""
        return _FREE

    def decide(self, workspace: Workspace, operation: str, paths: Iterable[str] = (".",)) -> Decision:
        """Return the policy's decision for all of these paths together; raises PolicyDenied."""
        return decide(lookup.policy_of(workspace), "owner", operation)

    def readable(self, workspace: Workspace) -> Callable[[str], bool] | None:
        """Return a filter of the paths of the workspace that may be read without approval; None means all."""
        return None

    def wait_for(self, asked: _Asked) -> None:
        """Request an approval and return when it is granted; otherwise raise the error for the caller."""
        raise AssertionError(f"the owner was to ask for {asked.request.operation}")

    def _kept(self, spot: Spot, operation: str, held: Held, to: Held | None) -> dict[str, Any]:
        """Return the undo information of a destructive change; back out if no snapshot has the content yet."""
        if operation not in ("overwrite", "delete", "move"):
            return {}
        from workstead.core.latest_snapshot import is_kept, state_with

        things = [held] if to is None else [held, to]
        places = {place: thing for thing in things if is_kept(place := spot.place(thing))}
        if not places:
            return {}
        before = state_with(self._home, spot.workspace, places, just_kept=self._tries > 0)
        if before is None:
            raise _Unkept(spot.workspace)
        return {"operation_id": self._home.new_id(), "before": before, "places": list(places)}

    def keep(self, workspace: Workspace) -> None:
        """Take a snapshot of the workspace."""
        from workstead.core.snapshots import keep

        self._tries += 1
        if self._tries > _TRIES:
            raise FileChanged(
                f"somebody is changing {workspace.id} all the time", hint="wait for its runs, then try again"
            )
        try:
            with self._home.hold(workspace.id):
                keep(self._home, lookup.by_uid(self._home, workspace.uid), cause="before_change", once=True)
        except DiskFull as error:
            raise DiskFull(
                f"there is no room to keep what would be taken away: {error.message}",
                hint="aw sweep --free makes room; the owner's --no-keep goes on with no way back",
            ) from None


def judged(home: Home, act: Callable[[Gate], Result], *, keep: bool = False) -> Result:
    """Execute `act` under the policy; it asks the gate at the last moment, and may be called several times.

    A snapshot is taken before an agent's destructive change, and before the owner's with `keep`.
    """
    gate = Judge(home) if is_agent(home) else Gate(home, keeps=keep)
    while True:
        try:
            return act(gate)
        except _Asked as asked:
            gate.wait_for(asked)
        except _Unkept as unkept:
            gate.keep(unkept.workspace)
        except WrongStatus as error:
            if error.details.get("event_type") != "approval_used":
                raise
            # Another process has used the grant at the same time, and nothing of ours was recorded: request another.


class _Asked(Exception):
    """Back out before any effect: an approval is needed first."""

    def __init__(self, workspace: Workspace, request: Request, rule: str, preview: Kept | None) -> None:
        self.workspace = workspace
        self.request = request
        self.rule = rule
        self.preview = preview  # None if the same request is already open


class _Unkept(Exception):
    """Back out of a destructive change whose old content is in no snapshot yet."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace


class Judge(Gate):
    """An agent's gate, for one call of a verb."""

    judges = True

    def __init__(self, home: Home) -> None:
        super().__init__(home, keeps=True)
        self._until = time.monotonic() + home.caller.wait_seconds

    # -- the policy's decision -----------------------------------------------------------------------------------------

    def decide(self, workspace: Workspace, operation: str, paths: Iterable[str] = (".",)) -> Decision:
        policy = lookup.policy_of(workspace)
        return self._allowed(
            operation, strictest(self._decide(policy, operation, path) for path in paths), workspace.id
        )

    def _decide(
        self, policy: Policy, operation: str, path: str, size: int | None = None, binary: bool | None = None
    ) -> Decision:
        return decide(policy, AGENT, operation, path, size=size, binary=binary, run=self._home.caller.run_id)

    def readable(self, workspace: Workspace) -> Callable[[str], bool] | None:
        policy = lookup.policy_of(workspace)
        if policy.defaults["read"] == "allow" and all(
            rule.outcome == "allow" or (rule.operations and "read" not in rule.operations) for rule in policy.rules
        ):
            return None
        return lambda path: self._decide(policy, "read", path).outcome == "allow"

    def _allowed(self, operation: str, decision: Decision, where: str) -> Decision:
        if decision.outcome == "deny":
            raise PolicyDenied(
                f"the policy does not let an agent {operation} {where}",
                hint=f"it says {decision.rule}",
                details={"operation": operation, "rule": decision.rule},
            )
        return decision

    # -- files ---------------------------------------------------------------------------------------------------------

    def file(
        self,
        spot: Spot,
        operation: str,
        held: Held,
        *,
        size: int | None = None,
        after: str = "",
        start: Callable[[], bytes | None] | None = None,
        content: Callable[[], bytes | None] | None = None,
        to: Held | None = None,
        **_: Any,
    ) -> Verdict:
        """Apply the policy at the resolved path; `content` returns the new content, `start` the beginning of it."""
        workspace, policy = spot.workspace, lookup.policy_of(spot.workspace)
        place = spot.place(held)
        looks = start or held.start
        binary = _is_binary(looks()) if asks_for_content(policy, operation) else None
        decisions = [self._decide(policy, operation, place, size, binary)]
        decisions += self._below(policy, operation, place, held, decisions[0])
        if to is not None:
            onto = "overwrite" if to.exists() else "write"
            there = spot.place(to)
            decisions.append(self._decide(policy, onto, there, size, binary))
            decisions += self._below(policy, onto, there, held, decisions[-1])
        if operation == "move":  # else a move could bring an unreadable file to a readable path
            decisions.append(self._decide(policy, "read", place, size, binary))
            decisions += self._below(policy, "read", place, held, decisions[-1])
        decision = self._allowed(operation, strictest(decisions), spot.root.public(held.path))
        facts: tuple[Value, ...] = ()
        if decision.outcome == "ask":
            request = Request(
                operation=operation,
                place=place,
                path=spot.root.public(held.path),
                to=spot.root.public(to.path) if to is not None else "",
                digest_before=_before(held, to),
                digest_after=after,
                size=size or 0,
            )

            def preview() -> Iterable[bytes]:
                from workstead.core.previews import of_file

                shown = list(of_file(request, held, to, content))
                if _before(held, to) != request.digest_before:
                    raise FileChanged(f"{request.path} is being changed by somebody else", hint="try again")
                return shown

            facts = self._granted(workspace, request, decision, preview)
        tells = self._decide(policy, "read", place).outcome == "allow"
        return Verdict(facts, self._kept(spot, operation, held, to), tells=tells)

    def _below(self, policy: Policy, operation: str, place: str, held: Held, decision: Decision) -> list[Decision]:
        """Return the decisions for entries inside a directory, if they may be stricter than that for the directory."""
        if not differs_below(policy, operation, decision.outcome) or not held.exists():
            return []
        return [self._decide(policy, operation, f"{place}/{path}", size) for path, size in held.listing()]

    # -- workspaces ----------------------------------------------------------------------------------------------------

    def whole(self, workspace: Workspace, request: Request, decision: Decision, preview: Preview) -> Verdict:
        if decision.outcome == "allow":
            return _FREE
        return Verdict(self._granted(workspace, request, decision, preview))

    # -- requesting approval -------------------------------------------------------------------------------------------

    def _granted(
        self, workspace: Workspace, request: Request, decision: Decision, preview: Preview
    ) -> tuple[Value, ...]:
        """Return the event that uses the grant for this request; back out if there is none."""
        from workstead.core import approval_requests
        from workstead.core.previews import collect

        found = approval_requests.find_live(self._home, workspace, request)
        if found is not None and found.state == "granted":
            return (approval_requests.spend(found),)
        # Build the preview now, while the files that it shows are open.
        shown = collect(preview()) if found is None else None
        raise _Asked(workspace, request, decision.rule, shown)

    def wait_for(self, asked: _Asked) -> None:
        """Request an approval and return when it is granted; otherwise raise the error for the caller."""
        from workstead.core import approval_requests

        approval = approval_requests.ask(self._home, asked.workspace, asked.request, asked.rule, asked.preview)
        if approval is None:  # the open request that we wanted to join has just ended
            return
        approval_requests.wait(self._home, approval, max(0.0, self._until - time.monotonic()))


def _is_binary(data: bytes | None) -> bool | None:
    return None if data is None else b"\0" in data


def _before(held: Held, to: Held | None) -> str:
    """Return the fingerprints of everything that a change replaces."""
    return ":".join(filter(None, (each.fingerprint() for each in (held, to) if each is not None)))

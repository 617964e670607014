"""The gate: what an agent asks for is judged by the workspace's policy, on the facts, right before it happens.

    judge → allow: go on · deny: PolicyDenied · ask: is there a grant? spend it and go on; else step back, ask a person,
    wait for as long as the caller wants to, and try again

The judgement comes last, when the place and the content are known and cannot be swapped any more. A grant is for one
place, and for the digests of what is there and of what shall be: if either is another one by now, it does not fit, and
the question is put anew. Before something is taken away by an agent its state is kept, so that a mistake, also an
approved one, can be undone.

The owner passes at no cost. A verb that is not in `AGENTS_MAY` is the owner's alone, also one that is new.
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

# Verbs that an agent may call: about its own workspace, and under the policy of that. No other is open to it.
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
        # what a door needs to do an agent's call once, whatever happens to whoever does it
        *("caused_by", "accept_call", "get_call", "hold_call", "effects_of", "end_call", "start_call", "settle"),
        *("by_uid", "operations", "acting_as", "close", "clean_up", "let_go"),
    }
)
_TRIES = 5  # of a change to what somebody else is changing all the time


def close_to_agents(verbs: object) -> None:
    """Put a refusal in the place of every verb that agents may not call."""
    for name in dir(type(verbs)):
        if not name.startswith("_") and name not in AGENTS_MAY:
            verbs.__dict__[name] = _refusal(name)


def _refusal(name: str) -> Callable[..., Never]:
    def refuse(*_: object, **__: object) -> Never:
        raise Forbidden(f"{name} is for the owner, not for an agent", hint="ask the owner")

    return refuse


def is_agent(home: Home) -> bool:
    """Whether the policy judges who is calling."""
    return home.caller.agent_of is not None


def refuse_agents(home: Home, what: str) -> None:
    """Refuse what only the owner may ask for."""
    if is_agent(home):
        raise Forbidden(f"{what} is for the owner, not for an agent", hint="ask the owner")


def refuse_confined(home: Home, what: str) -> None:
    """Refuse what an agent that was given one workspace may not ask for."""
    if home.caller.agent_of:
        raise Forbidden(f"{what} is not for an agent of one workspace", hint="ask the owner")


def hand_down(home: Home, agent_of: str | None) -> str | None:
    """Whom a caller may act for: an agent stays one, and gets no other workspace than it has."""
    own = home.caller.agent_of
    if own is None or own == agent_of or (own == "" and agent_of is not None):
        return agent_of if agent_of in (None, "") else lookup.normal_id(str(agent_of))
    raise Forbidden("an agent cannot act for anybody else", hint="ask the owner")


class Verdict:
    """That it may be done: facts to be written down together with it, and what a change of files says of itself."""

    def __init__(
        self, facts: Sequence[Value] = (), change: dict[str, Any] | None = None, *, tells: bool = True
    ) -> None:
        self.facts = tuple(facts)
        self.change = change or {}
        self.tells = tells  # whether whoever does it may learn the digest of what was there


_FREE = Verdict()


class Gate:
    """The owner's: always open. What is taken away is kept first, if that was asked for."""

    judges = False

    def __init__(self, home: Home, *, keeps: bool) -> None:
        self.keeps = keeps
        self._home = home
        self._tries = 0

    def file(self, spot: Spot, operation: str, held: Held, *, to: Held | None = None, **_: Any) -> Verdict:
        """Let somebody do something to one file or directory."""
        return Verdict((), self._kept(spot, operation, held, to)) if self.keeps else _FREE

    def whole(self, workspace: Workspace, request: Request, decision: Decision, preview: Preview) -> Verdict:
        """Let somebody do something to a workspace; what the policy says to it, the caller has asked already."""
        return _FREE

    def decide(self, workspace: Workspace, operation: str, paths: Iterable[str] = (".",)) -> Decision:
        """What the policy says to all of these paths together; raises PolicyDenied."""
        return decide(lookup.policy_of(workspace), "owner", operation)

    def readable(self, workspace: Workspace) -> Callable[[str], bool] | None:
        """Which paths of the workspace may be read without asking; None is all of them."""
        return None

    def wait_for(self, asked: _Asked) -> None:
        """Ask, and come back when it is granted; raises what the caller has to know otherwise."""
        raise AssertionError(f"the owner was to ask for {asked.request.operation}")

    def _kept(self, spot: Spot, operation: str, held: Held, to: Held | None) -> dict[str, Any]:
        """How a change that takes something away can be taken back; steps back if that is not kept yet."""
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
        """Keep the present state of the workspace."""
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
    """Do something under the policy; `act` asks the gate at the last moment, and may be called several times.

    What an agent takes away is always kept before, and what the owner does with `keep`."""
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
            # Somebody else has used the grant this instant, and nothing of ours was written down: ask for another.


class _Asked(Exception):
    """Steps back from something that has not happened: a person has to be asked first."""

    def __init__(self, workspace: Workspace, request: Request, rule: str, preview: Kept | None) -> None:
        self.workspace = workspace
        self.request = request
        self.rule = rule
        self.preview = preview  # None if the same is being asked already


class _Unkept(Exception):
    """Steps back from taking away something that is in no kept state yet."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace


class Judge(Gate):
    """An agent's gate, for one call of a verb."""

    judges = True

    def __init__(self, home: Home) -> None:
        super().__init__(home, keeps=True)
        self._until = time.monotonic() + home.caller.wait_seconds

    # -- what the policy says ------------------------------------------------------------------------------------------

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
        """Judge by where it is really done; `content` gives what shall be there, `start` the beginning of it."""
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
        if operation == "move":  # else what may not be read is moved to where it may be
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
        """What the policy says to what is inside a directory, if that may be more than it says to the directory."""
        if not differs_below(policy, operation, decision.outcome) or not held.exists():
            return []
        return [self._decide(policy, operation, f"{place}/{path}", size) for path, size in held.listing()]

    # -- workspaces ----------------------------------------------------------------------------------------------------

    def whole(self, workspace: Workspace, request: Request, decision: Decision, preview: Preview) -> Verdict:
        if decision.outcome == "allow":
            return _FREE
        return Verdict(self._granted(workspace, request, decision, preview))

    # -- asking --------------------------------------------------------------------------------------------------------

    def _granted(
        self, workspace: Workspace, request: Request, decision: Decision, preview: Preview
    ) -> tuple[Value, ...]:
        """The fact that spends the grant for this request; steps back if there is none."""
        from workstead.core import approval_requests
        from workstead.core.previews import collect

        found = approval_requests.find_live(self._home, workspace, request)
        if found is not None and found.state == "granted":
            return (approval_requests.spend(found),)
        # Made now, while what it shows is held open.
        shown = collect(preview()) if found is None else None
        raise _Asked(workspace, request, decision.rule, shown)

    def wait_for(self, asked: _Asked) -> None:
        """Ask, and come back when it is granted; raises what the caller has to know otherwise."""
        from workstead.core import approval_requests

        approval = approval_requests.ask(self._home, asked.workspace, asked.request, asked.rule, asked.preview)
        if approval is None:  # what we wanted to join has just ended
            return
        approval_requests.wait(self._home, approval, max(0.0, self._until - time.monotonic()))


def _is_binary(data: bytes | None) -> bool | None:
    return None if data is None else b"\0" in data


def _before(held: Held, to: Held | None) -> str:
    """The fingerprints of all that a change finds in place."""
    return ":".join(filter(None, (each.fingerprint() for each in (held, to) if each is not None)))

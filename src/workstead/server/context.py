"""The context of a request: the shared server state, and the authenticated caller."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

from fastapi import Depends, Request

from workstead.calls import run_of
from workstead.errors import Forbidden, WorkspaceNotFound, WorksteadError
from workstead.model.names import format_id, parse_id
from workstead.model.token import Bearer
from workstead.server.access_log import note
from workstead.server.state import ServerState

if TYPE_CHECKING:
    from workstead.local import Local
    from workstead.server.metrics import Metrics
    from workstead.server.streams import Hub, Tails
    from workstead.server.webhooks import Webhooks
    from workstead.settings import Settings
else:
    Local = object  # FastAPI evaluates annotations at run time; the class itself is for the type checker


MAX_WAIT_SECONDS = 60
FIRST_SWEEP_SECONDS = 60.0  # after startup
FIRST_VERIFY_SECONDS = 300.0


class Front(ServerState):
    """One server: its shared state, streams, webhooks, metrics and housekeeping threads."""

    hub: Hub  # set by the application
    tails: Tails
    webhooks: Webhooks
    metrics: Metrics

    def __init__(self, workspaces: Local, settings: Settings, hosts: frozenset[str]) -> None:
        super().__init__(workspaces, settings, hosts)
        self._keeper = threading.Thread(target=self._keep_house, name="housekeeping", daemon=True)
        self._verifier = threading.Thread(target=self._verify, name="verification", daemon=True)

    def start(self) -> None:
        """Start the background threads, on the running event loop."""
        self.hub.start()
        for call in self.workspaces.left_calls():  # accepted by a server that died
            self.workspaces.start_call(call.call_id)
        self.webhooks.use(self.settings.webhooks)
        self._keeper.start()
        self._verifier.start()

    def _keep_house(self) -> None:
        """Run sweeps at the interval of the settings."""
        pause: float | None = FIRST_SWEEP_SECONDS
        while not self.stopping.wait(pause):
            try:
                pause = self.workspaces.sweep_if_due()
            except WorksteadError as error:
                note("sweep", message=error.message)
                pause = FIRST_SWEEP_SECONDS
            except Exception as error:  # one failed sweep must not stop later ones
                note("sweep", error=error)
                pause = FIRST_SWEEP_SECONDS

    def _verify(self) -> None:
        """Verify all stored data slowly in the background, and log damage."""
        pause: float | None = FIRST_VERIFY_SECONDS
        while not self.stopping.wait(pause):
            try:
                pause = self.workspaces.verify_if_due(self.stopping.is_set)
                for each in self.workspaces.damage():
                    affected = ", ".join(each.affects) or "no workspace"
                    note("verification", message=f"{each.what} (affects {affected}); {each.remedy}")
            except WorksteadError as error:
                note("verification", message=error.message)
                pause = FIRST_VERIFY_SECONDS
            except Exception as error:  # one unreadable part must not stop later rounds
                note("verification", error=error)
                pause = FIRST_VERIFY_SECONDS

    def join(self) -> None:
        """Return when no thread of this server reads the log any more, so that it can be closed."""
        self.hub.join()
        self.webhooks.join()
        self._keeper.join(2.0)  # the next sweep resumes an interrupted one
        self._verifier.join(2.0)  # the same holds for verification

    def stop(self) -> None:
        """End every stream."""
        self.stopping.set()
        self.webhooks.end()
        self.hub.wake()
        self.tails.wake()

    def use_settings(self, settings: Settings) -> None:
        """Replace the settings, including the webhooks."""
        super().use_settings(settings)
        if not self.stopping.is_set():
            self.webhooks.use(settings.webhooks)


def front_of(request: Request) -> Front:
    """Return the server that handles a request."""
    front: Front = request.app.state.front
    return front


def bearer_of(request: Request) -> Bearer:
    """Return the caller of a request, as authenticated by the guard."""
    bearer: Bearer = request.scope["state"]["bearer"]
    return bearer


def verbs_of(request: Request) -> Local:
    """Return the verbs with the permissions of the caller."""
    bearer, headers = bearer_of(request), request.headers
    actor, agent_of = bearer.actor_id, bearer.workspace_id
    if agent_of is None:  # the owner may act in another actor's name, and with fewer permissions, never with more
        actor = unquote(headers.get("x-aw-actor") or "") or actor
        agent_of = headers.get("x-aw-agent-of")
        agent_of = None if agent_of is None else unquote(agent_of)
    return front_of(request).workspaces.acting_as(
        actor,
        correlation_id=unquote(headers.get("x-correlation-id") or "") or request.scope["state"]["request_id"],
        causation_id=unquote(headers.get("x-causation-id") or ""),
        agent_of=agent_of,
        wait_seconds=preferred_wait(headers.get("prefer")),
        run_id=run_of(bearer.actor_id),
    )


def preferred_wait(prefer: str | None) -> float:
    """Return how long the caller wants to wait for an approval, from `Prefer: wait=N`, in seconds."""
    found = re.search(r"(?:^|,)\s*wait\s*=\s*(\d{1,9})\s*(?:,|;|$)", prefer or "")
    return float(min(int(found.group(1)), MAX_WAIT_SECONDS)) if found else 0.0


def owner_only(request: Request) -> None:
    """Refuse every token except the owner's."""
    if bearer_of(request).workspace_id is not None:
        raise Forbidden("this is for the owner", hint="the token is good for one workspace only")


def check_reach(bearer: Bearer, workspace_id: str) -> str:
    """Return the id if the bearer may access that workspace; otherwise raise the same error as for a missing
    workspace."""
    if bearer.workspace_id not in (None, workspace_id):
        raise WorkspaceNotFound.of(workspace_id)
    return workspace_id


def workspace_of(request: Request, task: str, agent: str) -> str:
    """Return the id of the workspace that the URL names."""
    return check_reach(bearer_of(request), format_id(*parse_id(f"{task}/{agent}")))


Verbs = Annotated[Local, Depends(verbs_of)]
Here = Annotated[Front, Depends(front_of)]
Asker = Annotated[Bearer, Depends(bearer_of)]
WorkspaceId = Annotated[str, Depends(workspace_of)]
OWNER = [Depends(owner_only)]

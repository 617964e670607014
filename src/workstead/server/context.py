"""What the parts of one server share, and who is asking."""

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
    Local = object  # FastAPI looks at annotations while it runs; the class itself is for the type checker


MAX_WAIT_SECONDS = 60
FIRST_SWEEP_SECONDS = 60.0  # after the start
FIRST_VERIFY_SECONDS = 300.0


class Front(ServerState):
    """One server: its shared state, its streams, webhooks and metrics, and its housekeeping thread."""

    hub: Hub  # set by the application
    tails: Tails
    webhooks: Webhooks
    metrics: Metrics

    def __init__(self, workspaces: Local, settings: Settings, hosts: frozenset[str]) -> None:
        super().__init__(workspaces, settings, hosts)
        self._keeper = threading.Thread(target=self._keep_house, name="housekeeping", daemon=True)
        self._verifier = threading.Thread(target=self._verify, name="verification", daemon=True)

    def start(self) -> None:
        """Begin to serve, on the running loop."""
        self.hub.start()
        for call in self.workspaces.left_calls():  # accepted by a server that died
            self.workspaces.start_call(call.call_id)
        self.webhooks.use(self.settings.webhooks)
        self._keeper.start()
        self._verifier.start()

    def _keep_house(self) -> None:
        """Sweep when the settings want it."""
        pause: float | None = FIRST_SWEEP_SECONDS
        while not self.stopping.wait(pause):
            try:
                pause = self.workspaces.sweep_if_due()
            except WorksteadError as error:
                note("sweep", message=error.message)
                pause = FIRST_SWEEP_SECONDS
            except Exception as error:  # one sweep failed: the next one is still due
                note("sweep", error=error)
                pause = FIRST_SWEEP_SECONDS

    def _verify(self) -> None:
        """Read everything that is kept, slowly, and note what is damaged."""
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
            except Exception as error:  # one part could not be read: the next time it may be
                note("verification", error=error)
                pause = FIRST_VERIFY_SECONDS

    def join(self) -> None:
        """Return when no thread of ours reads the log any more, so that it can be closed."""
        self.hub.join()
        self.webhooks.join()
        self._keeper.join(2.0)  # a sweep goes on where it was left
        self._verifier.join(2.0)  # so does this

    def stop(self) -> None:
        """End every stream."""
        self.stopping.set()
        self.webhooks.end()
        self.hub.wake()
        self.tails.wake()

    def use_settings(self, settings: Settings) -> None:
        """Switch to other settings, the webhooks included."""
        super().use_settings(settings)
        if not self.stopping.is_set():
            self.webhooks.use(settings.webhooks)


def front_of(request: Request) -> Front:
    """The server that a request came to."""
    front: Front = request.app.state.front
    return front


def bearer_of(request: Request) -> Bearer:
    """Who asks, as the guard found out."""
    bearer: Bearer = request.scope["state"]["bearer"]
    return bearer


def verbs_of(request: Request) -> Local:
    """The verbs on behalf of who asks."""
    bearer, headers = bearer_of(request), request.headers
    actor, agent_of = bearer.actor_id, bearer.workspace_id
    if agent_of is None:  # the owner may act in another's name, and with fewer rights, never with more
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
    """How long the caller wants to wait for an approval: `Prefer: wait=N`, in seconds."""
    found = re.search(r"(?:^|,)\s*wait\s*=\s*(\d{1,9})\s*(?:,|;|$)", prefer or "")
    return float(min(int(found.group(1)), MAX_WAIT_SECONDS)) if found else 0.0


def owner_only(request: Request) -> None:
    """Refuse every token but the owner's."""
    if bearer_of(request).workspace_id is not None:
        raise Forbidden("this is for the owner", hint="the token is good for one workspace only")


def check_reach(bearer: Bearer, workspace_id: str) -> str:
    """The id, if the bearer may know of that workspace: one that it may not know of is one that does not exist."""
    if bearer.workspace_id not in (None, workspace_id):
        raise WorkspaceNotFound.of(workspace_id)
    return workspace_id


def workspace_of(request: Request, task: str, agent: str) -> str:
    """The workspace that the address names."""
    return check_reach(bearer_of(request), format_id(*parse_id(f"{task}/{agent}")))


Verbs = Annotated[Local, Depends(verbs_of)]
Here = Annotated[Front, Depends(front_of)]
Asker = Annotated[Bearer, Depends(bearer_of)]
WorkspaceId = Annotated[str, Depends(workspace_of)]
OWNER = [Depends(owner_only)]

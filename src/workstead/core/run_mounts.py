"""Extra mounts and variables of a run: borrowed git objects, a parent repository, a folder in place, shares."""

from __future__ import annotations

from workstead.core.mounting import filled_in
from workstead.core.shares import link_shared, mounts_of, variables_for
from workstead.errors import Refused, SandboxUnavailable
from workstead.model.text import printable
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workstead.core.home import Home
    from workstead.model.workspace import Workspace


class Reach(Value):
    """Mounts as (host path, path inside, writable), variables, and the process whose namespaces have the files."""

    mounts: list[tuple[str, str, bool]]
    environment: dict[str, str]
    holder: int | None = None


def reach_of(home: Home, workspace: Workspace, *, confined: bool, aside: str = "") -> Reach:
    """Return the mounts and variables that the source of a workspace needs, and nothing more.

    A run without a sandbox has no mounts of its own: shares are shown by links in `aside`, a directory of ours.
    """
    origin = filled_in(home, workspace)[0].origin
    mounts = [(path, path, False) for path in _borrowed(home, origin)]
    environment: dict[str, str] = {}
    if origin.get("kind") == "folder":
        # `work` is a link to the folder: mounted at the folder's own path, the link works inside too.
        mounts.append((str(origin["path"]), str(origin["path"]), True))
    if origin.get("kind") == "worktree" and not origin.get("forked"):
        mounts.append((str(origin["repository"]), str(origin["repository"]), False))
        mounts.append((str(origin["admin"]), str(origin["admin"]), True))
        environment.update({str(key): str(value) for key, value in dict(origin["environment"]).items()})
    shared = mounts_of(home, workspace)
    environment.update(variables_for(shared if confined else link_shared(shared, aside)))
    mounts += shared
    return Reach(mounts=mounts, environment=environment, holder=_holder(home, workspace, confined=confined))


def _borrowed(home: Home, origin: dict[str, Any]) -> list[str]:
    """Return the directories of git objects that a workspace reads.

    One that is not ours is checked again before each mount: an agent that can write there may have replaced it.
    """
    from workstead.system.git.repository import why_no_objects

    paths = [str(path) for path in origin.get("borrows", ())]
    for path in paths:
        why = "" if path.startswith(f"{home.path}/") else why_no_objects(path)
        if why:
            raise Refused(
                f"{printable(path)}, from which the workspace borrows git objects, {why}",
                hint="put the objects back, or make the workspace anew",
            )
    return paths


def _holder(home: Home, workspace: Workspace, *, confined: bool) -> int | None:
    from workstead.system.overlay import layers

    namespaces = layers.namespaces_of(*filled_in(home, workspace))
    if namespaces is None:
        return None
    if not confined:
        raise SandboxUnavailable(
            f"without a sandbox a command cannot see {workspace.id}, whose files are in a namespace of their own",
            hint="--sandbox bubblewrap, or make the workspace by a copy",
        )
    return int(namespaces[0].split("/")[2])

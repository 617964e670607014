"""Write the metadata documents of a workspace: `.aw/`, `CLAUDE.md`, `AGENTS.md`."""

from __future__ import annotations

from workstead.model.config import Config, parse_config
from workstead.system.files import metadata

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from workstead.model.workspace import Workspace
DOCUMENTS = ("task_spec.json", "workspace_config.json", "context.json", "run.json")


def write_metadata(root: str, stated: Mapping[str, Any], config: Config) -> str:
    """Write `.aw/` and the notes for the agent; return the digest of `.aw/`."""
    import time

    texts = {"CLAUDE.md": config.claude_md, "AGENTS.md": config.agents_md}
    documents = documents_of(stated, config, time.time())
    return metadata.write_all(root, documents, {name: text for name, text in texts.items() if text is not None})


def documents_of(stated: Mapping[str, Any], config: Config, now: float) -> dict[str, dict[str, Any]]:
    """Return the documents of `.aw/` for a workspace created at this time."""
    import time

    created_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    task = stated["workspace_id"][: -len(stated["agent_id"]) - 1]
    common = {"task_id": task, "agent_id": stated["agent_id"]}
    git = config.git_config.as_dict() if config.git_config else None
    return {
        "task_spec.json": {**common, "prompt": config.prompt, **config.task_spec},
        "workspace_config.json": {
            **common,
            "workspace_path": stated["workspace_path"],
            "created_at": created_at,
            "max_size_mb": config.max_size_mb,
            "allowed_operations": config.allowed_operations or ["read", "write", "execute"],
            "git_config": git,
        },
        "context.json": {
            "created_at": created_at,
            "workspace_path": stated["workspace_path"],
            "workspace_id": stated["workspace_id"],
            "source": stated["source"],
            **config.context,
        },
        "run.json": {
            "run_id": None,
            "repo_id": config.repo_id,
            "repo_name": config.repo_name or _repo_name(stated["source"]),
            "prompt": config.prompt,
            "created_at": int(now),
            "workspace_id": stated["workspace_id"],
            "uid": stated["uid"],
        },
    }


def write_run(workspace: Workspace, run_id: str, prompt: str | None) -> str:
    """Write the run to `.aw/run.json`, and return the new digest of `.aw/`.

    Return "" if a document is damaged: a new digest would hide that from `aw verify`. A run.json lost in a power cut is
    expected and does not count.
    """
    import time

    was_whole = metadata.digest_of(workspace.path, DOCUMENTS) == workspace.metadata_digest
    is_lost = metadata.read_document(workspace.path, metadata.IDENTITY) is None
    metadata.replace(workspace.path, "run.json", run_document(workspace, run_id, prompt, time.time()))
    return (metadata.digest_of(workspace.path, DOCUMENTS) or "") if was_whole or is_lost else ""


def run_document(workspace: Workspace, run_id: str, prompt: str | None, now: float) -> dict[str, Any]:
    """Return the content of `.aw/run.json` for a run that begins."""
    config = parse_config(workspace.config)
    return {
        "run_id": run_id,
        "repo_id": config.repo_id,
        "repo_name": config.repo_name or _repo_name(workspace.source),
        "prompt": prompt or config.prompt,
        "created_at": int(now),
        "workspace_id": workspace.id,
        "uid": workspace.uid,
    }


def _repo_name(source: str) -> str | None:
    kind, _, rest = source.partition(":")
    if kind in ("empty", "template"):
        return None
    name = rest.partition("#")[0].rstrip("/").rpartition("/")[2]
    return name.removesuffix(".git") or None

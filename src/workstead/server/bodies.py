"""Request bodies. An unknown key is refused rather than silently ignored: an ignored option is a broken promise."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(max_length=100_000)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Path = Annotated[str, Field(min_length=1, max_length=4096, examples=["work/main.py"])]
Seconds = Annotated[float, Field(gt=0, le=31_536_000)]
Rows = Annotated[int, Field(ge=1, le=500)]
Columns = Annotated[int, Field(ge=1, le=1000)]
Megabytes = Annotated[int, Field(gt=0, le=1 << 30)]


class Body(BaseModel):
    """Base of all request bodies: strict types, no unknown keys, no infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class NewWorkspace(Body):
    """A workspace to create."""

    source: Text = Field("empty", examples=["empty", "clone:https://example.org/project.git#main"])
    id: Annotated[str, Field(max_length=401)] | None = Field(None, examples=["fix-login/a1"])
    task: Name | None = None
    agent: Name | None = None
    config: dict[str, Any] | None = Field(None, examples=[{"max_size_mb": 500}])
    lazy: bool = Field(False, description="take the id now, make the files at first use")


class Destroy(Body):
    """Workspaces to move to the trash."""

    ids: list[Annotated[str, Field(min_length=1, max_length=401)]] = Field(
        max_length=10_000, examples=[["fix-login/a1"]]
    )
    force: bool = False
    reason: Annotated[str, Field(max_length=1000)] = "requested"


class NewRun(Body):
    """A command to run."""

    command: list[Text] = Field(min_length=1, max_length=10_000, examples=[["python3", "-c", "print(1)"]])
    sandbox: Literal["auto", "bubblewrap", "vm"] = Field("auto", description="`none` cannot be asked for here")
    network: Annotated[str, Field(max_length=10_000)] | None = Field(None, examples=["none", "pypi.org"])
    timeout_seconds: Seconds | None = Field(None, examples=[600])
    environment: dict[str, Text] = Field({}, examples=[{"CI": "1"}])
    prompt: Text | None = None
    agent: Name | None = Field(None, description="a row of the settings' table of agents")
    concurrent: bool = False
    memory_mb: Megabytes | None = None
    processes: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    cpus: Annotated[float, Field(gt=0, le=10_000)] | None = None
    file_mb: Megabytes | None = None
    output_mb: Megabytes | None = None
    tty: bool = Field(False, description="with a terminal, which `POST /api/runs/{run}/terminal` types into")
    rows: Rows = 24
    columns: Columns = 80


class Typed(Body):
    """Input for a terminal, and its new size."""

    text: Text = Field("", examples=["ls\n"])
    base64: Annotated[str, Field(max_length=140_000)] = Field("", description="the same, for what is no text")
    rows: Rows | None = None
    columns: Columns | None = None


class Move(Body):
    """A file to rename."""

    path: Path
    to: Path = Field(examples=["work/app.py"])
    replace: bool = False
    keep: bool = Field(True, description="keep what is there first, so that undo brings it back")


class NewDirectory(Body):
    """A directory to create."""

    path: Path = Field(examples=["work/src"])
    parents: bool = False


class NewSnapshot(Body):
    """A snapshot to take."""

    label: Annotated[str, Field(max_length=1000)] = Field("", examples=["before the refactoring"])


class Restore(Body):
    """A snapshot to restore."""

    snapshot: Annotated[str, Field(min_length=1, max_length=200)] = Field(examples=["base"])
    paths: list[Path] = Field([], max_length=100_000)


class Apply(Body):
    """Changes to apply to the origin."""

    paths: list[Path] = Field([], max_length=100_000)
    hunks: dict[Path, list[Text]] = Field({}, max_length=10_000, examples=[{"src/login.py": ["5a0c1d22e9f4"]}])
    to: Text | None = Field(None, examples=["branch:fix-login"])
    message: Text | None = None
    mark_conflicts: bool = False
    ignored: bool = Field(False, description="also files that the repository's own rules ignore")


class Fork(Body):
    """Forks to create."""

    new_id: Annotated[str, Field(min_length=1, max_length=401)] | None = Field(None, examples=["fix-login/a2"])
    count: Annotated[int, Field(ge=1, le=1000)] = 1
    snapshot: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class Undo(Body):
    """The operation to undo."""

    operation_id: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        None, description="the newest operation if left out"
    )


class BringBack(Body):
    """Options for restoring a workspace from the trash."""

    new_id: Annotated[str, Field(min_length=1, max_length=401)] | None = None


class Sweep(Body):
    """Options for a sweep, which deletes permanently."""

    dry_run: bool = False
    everything: bool = Field(False, description="whatever is in the trash, however young")
    uids: list[Name] = Field([], max_length=100_000)
    free_bytes: Annotated[int, Field(ge=0, le=1 << 62)] | None = Field(
        None, description="take more, until this is free"
    )


class NewTemplate(Body):
    """A template to add: a folder of the server's machine, or the files of a workspace."""

    name: Name = Field(examples=["python-service"])
    folder: Text | None = None
    workspace: Annotated[str, Field(max_length=401)] | None = Field(None, examples=["fix-login/a1"])


class ChosenFolder(Body):
    """A folder to select."""

    folder: Annotated[str, Field(min_length=1, max_length=4096)] = Field(examples=["/srv/project"])


class NewMessage(Body):
    """A message to a workspace."""

    text: Text = Field(examples=["please look at the failing test first"])
    sender: Name | None = None


class NewToken(Body):
    """A token to create."""

    workspace_id: Annotated[str, Field(min_length=1, max_length=401)] = Field(examples=["fix-login/a1"])
    label: Annotated[str, Field(max_length=200)] = ""
    expires_seconds: Seconds | None = None


class Stop(Body):
    """Options for stopping a run."""

    at_once: bool = Field(False, description="SIGKILL without SIGTERM before")


class OneEdit(Body):
    """One replacement, with the old text quoted."""

    old: Text = Field(examples=["retries = 3"])
    new: Text = Field(examples=["retries = 5"])


class Edits(Body):
    """Replacements to make in a file."""

    path: Path
    edits: list[OneEdit] = Field(min_length=1, max_length=1000)
    dry_run: bool = False
    context: Annotated[int, Field(ge=0, le=1000)] = 3


class Prompt(Body):
    """A prompt that may contain old mount paths."""

    text: Annotated[str, Field(max_length=1_000_000)] = Field(examples=["read /mnt/okcomputer/notes.md"])


class Turn(Body):
    """An answer of an agent, after which a snapshot is taken."""

    message: Annotated[str, Field(max_length=1_000_000)] = Field(examples=["I fixed the login bug."])


class Pin(Body):
    """The reason for pinning a workspace."""

    reason: Annotated[str, Field(max_length=1000)] = ""


class Repair(Body):
    """Options for a repair."""

    rebuild_views: bool = False
    accept_log: bool = False


class NewWorkspaceRun(NewRun):
    """A command to run in a new workspace."""

    source: Text = Field("empty", examples=["overlay:."])
    id: Annotated[str, Field(min_length=1, max_length=401)] | None = None
    config: dict[str, Any] | None = None


class KeptCommand(Body):
    """A command to run to its end in the workspace's command server, which stays for the next command."""

    command: list[Text] = Field(min_length=1, max_length=10_000, examples=[["pytest", "-q"]])
    sandbox: Literal["auto", "bubblewrap", "vm"] = "auto"
    network: Annotated[str, Field(max_length=10_000)] | None = None
    timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 600
    environment: dict[str, Text] = Field({})


class Decide(Body):
    """A decision about an approval."""

    decision: Literal["grant", "deny"]
    comment: Annotated[str, Field(max_length=10_000)] = ""
    unseen: bool = Field(False, description="grant also what the preview does not show whole (`whole` is false)")


class DecideAll(Decide):
    """A decision about every open request of a kind."""

    workspace_id: Annotated[str, Field(min_length=1, max_length=401)] | None = None
    run: Name | None = None
    operations: list[Name] = Field([], max_length=100)
    paths: list[Path] = Field([], max_length=1000)
    also_later: bool = Field(False, description="let what follows there go through too")


class NewPolicy(Body):
    """A policy, or differences from the present one."""

    policy: Name | dict[str, Any] = Field(examples=["careful"])
    reason: Annotated[str, Field(max_length=1000)] = ""


class NewArchive(Body):
    """The destination of an archive: a file or directory of the server's machine, or an `s3://` URL."""

    to: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    replace: bool = False


class WrittenArchive(Body):
    """The location of an archive: a file of the server's machine, or an `s3://` URL."""

    location: Annotated[str, Field(min_length=1, max_length=4096)] = Field(examples=["fix-login.a1.aw.tar.zst"])


class NewRace(Body):
    """A race: the same task in several workspaces of one source."""

    source: Text = Field(examples=["overlay:."])
    command: list[Text] = Field(min_length=1, max_length=10_000, examples=[["claude", "-p", "fix the login bug"]])
    count: Annotated[int, Field(ge=1, le=100)] = Field(examples=[4])
    check: Text | list[Text] | None = Field(None, examples=["pytest -q"])
    task: Name | None = None
    at_once: Annotated[int, Field(ge=1, le=100)] | None = None
    check_timeout_seconds: Seconds | None = None
    keep: Literal["all", "best"] = "all"
    apply_best: bool = False
    config: dict[str, Any] | None = None
    sandbox: Literal["auto", "bubblewrap", "vm"] = "auto"
    network: Annotated[str, Field(max_length=10_000)] | None = None
    timeout_seconds: Seconds | None = None
    environment: dict[str, Text] = Field({})
    prompt: Text | None = None
    agent: Name | None = None

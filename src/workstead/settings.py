"""Settings: read once, at a door, into one frozen value.

    defaults < /etc/aw/aw.yaml < $XDG_CONFIG_HOME/aw/aw.yaml < ./aw.yaml < AW_SECTION__KEY < flags

Each file may be YAML or TOML. Every value remembers its origin. An unknown key is an error that names it: a setting
that is silently ignored is a promise that is silently broken. Nothing below a door reads the environment.

`./aw.yaml` may come with an untrusted repository, or be written by an agent. `PROJECT` is the complete list of keys
that it may set, each only to a stricter value than the owner's, and its values hold only for workspaces that are
created from its directory. Everything else in it is an error.
"""

from __future__ import annotations

import os
import stat

from workstead.errors import InvalidConfig, from_os
from workstead.model.agent import AGENTS, Agent
from workstead.model.config import RUN_LIMITS
from workstead.model.policy import OPERATIONS, OUTCOMES
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


class Storage(Value):
    """Where files are stored."""

    workspaces_path: str | None = None  # null: <home>/workspaces; relative to the settings file or current directory
    min_free_mb: int = 16  # minimum free disk space to create a workspace
    verify_every_days: float | None = 30.0  # interval of the full verification while aw serve runs; null: never
    verify_mb_per_second: float = 8.0  # read rate of that verification
    max_cache_gb: float | None = None  # checkouts and mirrors; above it a sweep deletes the longest unused
    quota: str = "auto"  # enforcement of max_size_mb: image, metering; auto: as root an image from 16 to below 1000 MB
    mechanism: str = "auto"  # how files are shared; auto: the cheapest that this machine supports, see aw doctor


class Git(Value):
    """How repositories are fetched."""

    shallow: bool = True
    default_branch: str | None = None  # null: the repository's own
    submodules: bool = False  # whether to fetch submodules
    lfs: bool = False  # whether to fetch the large files of Git LFS
    lfs_hosts: list[str] = []  # hosts, besides its own, that a repository may name in .lfsconfig
    lfs_max_mb: int | None = 4096  # total size of the large files of one commit
    max_mb: int | None = 10240  # size of the files of one commit, and of everything fetched from one URL
    max_files: int | None = 1_000_000  # number of files and directories of one commit
    allow_ssh: bool = False
    private_hosts: list[str] = []  # hosts that may have private addresses, and be accessed without encryption


class Workspaces(Value):
    """Size limits of workspaces, and their retention."""

    default_max_size_mb: int | None = 1000  # size of the files that a workspace adds to its base
    default_max_files: int | None = 250_000  # files and directories that a workspace adds
    default_max_file_mb: int | None = None  # size of each file
    max_task_size_gb: float | None = None  # total of all workspaces of a task
    max_total_size_gb: float | None = None  # of all workspaces; from nine tenths on, a sweep trashes the longest idle
    retention_days: float | None = None  # since the last use; after that a sweep moves the workspace to the trash
    trash_days: float = 7
    sweep_every_hours: float | None = None  # while aw serve runs; null: only on request
    cleanup_on_shutdown: bool = False
    archive_workspaces: bool = False
    archives_path: str | None = None  # null: <home>/archives; a directory or an s3:// URL


class Archives(Value):
    """Limits of an archive that a workspace is created from."""

    max_gb: float = 100  # unpacked size
    max_files: int = 5_000_000
    max_objects_mb: int | None = 2048  # borrowed git objects; more are left out of the archive
    max_ratio: int = 1000  # maximum compression ratio, after the first 64 MB
    outside_links: bool = False  # whether to accept links that lead out of the workspace from archives of others


class Sandbox(Value):
    """The confinement of runs."""

    default: str = "auto"
    network: str = "none"
    public_mount: str = "/mnt/workspace"  # path at which an agent sees its workspace; random: a name for each
    uid: int = 64042  # owner of workspace files and user of runs when Workstead is started as root
    tools: list[str] = []  # directories mounted read-only at their own path: ~/.pyenv, ~/.nvm, ~/.cargo
    read_only: list[str] = []  # further read-only mounts: PATH, or PATH:INSIDE
    read_write: list[str] = []  # further writable mounts
    timeout_seconds: float | None = None
    memory_mb: int | None = 4096
    processes: int | None = 1024
    open_files: int | None = 8192  # per process
    file_mb: int | None = 4096  # size of each file
    output_mb: int | None = 64  # stored output of a run; the rest is only counted
    keep_seconds: float = 600  # idle timeout of the command server of `run --keep`
    secrets: list[str] = []  # HOST HEADER FILE: the proxy adds this header, and the agent never sees it
    stop_on_shutdown: bool = False  # whether closing stops the runs that were started by this opener
    vm_emulation: str = "refuse"  # allow: without KVM, --sandbox vm emulates its machine, slowly
    vm_memory_mb: int = 1024  # of a machine, shared by all commands in it
    vm_cpus: int | None = None  # null: those of the host, at most 4; one if emulated
    vm_idle_seconds: float = 600  # idle timeout of a machine
    vm_packages: str | None = None  # a directory with Debian's kernel package; null: apt downloads it


class Policy(Value):
    """What an agent may do without approval, in workspaces that are created from now on."""

    read: str = "allow"
    write: str = "allow"
    overwrite: str = "ask"
    delete: str = "ask"
    move: str = "allow"  # moving onto an existing file counts as overwrite
    execute: str = "ask"
    network: str = "ask"
    apply: str = "ask"
    destroy: str = "ask"
    approval_timeout_seconds: float = 300


class Files(Value):
    """Limits of the file verbs, and older mount names that prompts may still contain."""

    max_read_mb: int = 64
    max_write_mb: int = 256
    max_entries: int = 2_000_000
    old_mounts: list[str] = ["/mnt/okcomputer/", "/mnt/workspace/"]


class Snapshots(Value):
    """When snapshots are taken, and how many are retained."""

    around_runs: bool = True  # before and after every run
    after_answers: bool = True  # of a session; without it, turns cannot be restored
    max_total_gb: float | None = None
    keep_all_days: float = 1  # after that the last of each hour
    keep_hourly_days: float = 7  # after that the last of each day
    keep_daily_days: float = 90


class Server(Value):
    """Address and limits of `aw serve`."""

    host: str = "127.0.0.1"
    port: int = 8757
    names: list[str] = []  # additional accepted Host headers, as a proxy in front sends them: NAME[:PORT]
    log_requests: bool = False  # one line per request; refusals and errors are always logged
    max_streams: int = 2000  # concurrent streams of events and output
    max_body_mb: int = 4  # of a request, except uploads, which have files.max_write_mb


class Webhook(Value):
    """A receiver of events over HTTP: signed, in order, at least once."""

    url: str
    secret: str
    events: list[str] = []  # event types; empty: all


class Store(Value):
    """Where the event log is stored: null is SQLite in the home."""

    url: str | None = None


class Settings(Value):
    """All settings."""

    storage: Storage
    git: Git
    workspaces: Workspaces
    archives: Archives
    sandbox: Sandbox
    policy: Policy
    files: Files
    snapshots: Snapshots
    server: Server
    store: Store
    agents: dict[str, Agent] = AGENTS  # by name, for `aw run --agent NAME`
    webhooks: dict[str, Webhook] = {}  # by name, for `aw serve`
    origins: dict[str, str] = {}  # "section.key" -> origin of its value; missing for a default
    owners: dict[str, Any] = {}  # keys of `sandbox` that ./aw.yaml made stricter -> the owner's value

    def origin(self, section: str, key: str) -> str:
        """Return the origin of a key's value."""
        return self.origins.get(f"{section}.{key}", "default")

    @property
    def run_limits(self) -> dict[str, Any]:
        """Return the values of ./aw.yaml in `sandbox`: recorded in workspaces that are created from its directory."""
        return {key: getattr(self.sandbox, key) for key in self.owners}

    def sandbox_for(self, run_limits: Mapping[str, Any]) -> Sandbox:
        """Return the `sandbox` section for one workspace: the owner's values, or stricter ones from its creation."""
        sandbox = self.sandbox.replace(**self.owners)
        for key, value in run_limits.items():
            if is_stricter(f"sandbox.{key}", value, getattr(sandbox, key)):
                sandbox = sandbox.replace(**{key: value})
        return sandbox

    def as_environment(self) -> dict[str, str]:
        """Return the variables that give another `aw` process these settings, whatever their origin."""
        found = {}
        if self.owners:
            import json

            found[_RUN_LIMITS] = json.dumps(self.run_limits)
        for section in SECTIONS:
            values = getattr(self, section).as_dict()
            for key, value in {**values, **(self.owners if section == "sandbox" else {})}.items():
                text = ",".join(value) if isinstance(value, list) else "" if value is None else str(value)
                found[f"AW_{section}__{key}".upper()] = text
        for name, agent in self.agents.items():
            if self.origin("agents", name) != "default":
                import json

                found[f"AW_AGENTS__{name}".upper()] = json.dumps(agent.as_dict())
        return found


SECTIONS: dict[str, type[Value]] = {
    "storage": Storage,
    "git": Git,
    "workspaces": Workspaces,
    "archives": Archives,
    "sandbox": Sandbox,
    "policy": Policy,
    "files": Files,
    "snapshots": Snapshots,
    "server": Server,
    "store": Store,
}
# Tables whose rows have names chosen by the owner.
TABLES: dict[str, tuple[type[Value], str]] = {
    "agents": (Agent, 'as in {command: [mine, "{prompt}"]}'),
    "webhooks": (Webhook, "as in {url: https://example.org/hook, secret: …, events: [run_completed]}"),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "storage.quota": ("auto", "image", "metering"),
    "storage.mechanism": ("auto", "overlay", "rootless-overlay", "btrfs", "reflink", "copy"),
    "sandbox.default": ("auto", "none", "bubblewrap", "vm", "vm/kvm", "vm/tcg"),
    "sandbox.vm_emulation": ("refuse", "allow"),
    **{f"policy.{key}": OUTCOMES for key in OPERATIONS},
}
_PATHS = ("storage.workspaces_path", "workspaces.archives_path")  # relative to the settings file that has them
_FILE_NAMES = ("aw.yaml", "aw.toml")
_MAX_BYTES = 1 << 20  # of a settings file


def load_settings(
    environ: Mapping[str, str],
    directory: str,
    flags: Mapping[str, object] | None = None,
    *,
    system_directory: str = "/etc/aw",
) -> Settings:
    """Load the settings for a command started in `directory`; `flags` are {"section.key": value}."""
    config_home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or "/", ".config")
    values: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    for place in (system_directory, os.path.join(config_home, "aw")):
        path = _find_file(place)
        if path:
            _merge(values, origins, _from_file(path), path, os.path.dirname(path))
    project = _find_file(directory)
    asked = _merge_project(values, origins, _from_file(project), project) if project else {}
    _merge(values, origins, _from_environment(environ), "", directory)
    _merge(values, origins, _from_flags(flags or {}), "flag", directory)
    owners = {key: value for key, value in asked.items() if origins[f"sandbox.{key}"] == project}
    sections: dict[str, Any] = {name: cls(**values.get(name, {})) for name, cls in SECTIONS.items()}
    if environ.get(_RUN_LIMITS):
        import json

        given = json.loads(environ[_RUN_LIMITS])
        owners = {key: getattr(sections["sandbox"], key) for key in given}
        sections["sandbox"] = sections["sandbox"].replace(**given)
    agents, webhooks = {**AGENTS, **values.get("agents", {})}, values.get("webhooks", {})
    return Settings(**sections, agents=agents, webhooks=webhooks, origins=origins, owners=owners)


# -- keys that a project may set ---------------------------------------------------------------------------------------


def _is_less(value: Any, owners: Any) -> bool:
    """Compare limits: a limit may be lowered; null is no limit. 0 is refused, because for a run it means no limit."""
    return isinstance(value, int | float) and value > 0 and (owners is None or value < owners)


def _never(value: Any, owners: Any) -> bool:
    return False


def _ordered(**ranks: int) -> Callable[[Any, Any], bool]:
    """Compare words by rank; two words with the same rank are equally strict."""
    return lambda value, owners: value in ranks and ranks[value] >= ranks.get(owners, 0)


# Each key with its comparison: whether a value is at least as strict as the owner's. A project may not set a key that
# is missing here, which is also the default for every new key.
PROJECT: dict[str, Callable[[Any, Any], bool]] = {
    "storage.quota": _ordered(metering=0, auto=1, image=2),
    "git.submodules": lambda value, _: value is False,
    "git.lfs": lambda value, _: value is False,
    "git.lfs_max_mb": _is_less,
    "git.max_mb": _is_less,
    "git.max_files": _is_less,
    **{f"workspaces.{key}": _is_less for key in Workspaces.__types__ if key.startswith("default_")},
    "sandbox.default": _ordered(auto=1, bubblewrap=1, vm=2, **{"vm/kvm": 2}),
    "sandbox.network": lambda value, _: value == "none",
    **{f"sandbox.{key}": _is_less for key in RUN_LIMITS if key not in ("default", "network")},
    **{f"policy.{key}": _ordered(**{word: rank for rank, word in enumerate(OUTCOMES)}) for key in OPERATIONS},
    "policy.approval_timeout_seconds": _is_less,
}
_RUN_LIMITS = "AW_RUN_LIMITS"  # passes `Settings.run_limits` to a child process of ours


def is_stricter(name: str, value: Any, owners: Any) -> bool:
    """Return whether a project may set a key to this value, given the owner's."""
    return PROJECT.get(name, _never)(value, owners)


def _merge_project(
    values: dict[str, dict[str, Any]], origins: dict[str, str], layer: dict[str, dict[str, Any]], path: str
) -> dict[str, Any]:
    """Merge the values of ./aw.yaml, or refuse the file; return the owner's values of `sandbox` that it replaced."""
    replaced: dict[str, Any] = {}
    for section, keys in layer.items():
        for key, given in keys.items():
            name = f"{section}.{key}"
            if section in TABLES:
                raise _refused(name, path, "a project cannot add or change one")
            known = SECTIONS.get(section)
            if known is None or key not in known.__types__:
                raise _unknown(section, key, path)
            value = _convert(name, known.__types__[key], given, path)
            owners = values.get(section, {}).get(key, known.__defaults__[key])
            if value == owners:  # no change
                continue
            shown = f"{value!r:.60}"
            if name not in PROJECT:
                raise _refused(name, path, f"only the owner may set it (to {shown})")
            if not is_stricter(name, value, owners):
                raise _refused(name, path, f"{shown} is looser than {owners!r:.60}, which the owner has set")
            values.setdefault(section, {})[key] = value
            origins[name] = path
            if section == "sandbox":
                replaced[key] = owners
    return replaced


def _refused(name: str, path: str, reason: str) -> InvalidConfig:
    section, _, key = name.partition(".")
    return InvalidConfig(
        f"{path} may not set {name}: {reason}; a project can only make its own workspaces stricter",
        hint=f"remove it there, and set it in ~/.config/aw/aw.yaml, as {f'AW_{section}__{key}'.upper()}, or by a flag",
        details={"key": name, "origin": path},
    )


def _find_file(place: str) -> str | None:
    found = [path for path in (os.path.join(place, name) for name in _FILE_NAMES) if os.path.isfile(path)]
    if len(found) > 1:
        raise InvalidConfig(f"both {found[0]} and {found[1]} exist", hint="keep one of the two settings files")
    return found[0] if found else None


def _from_file(path: str) -> dict[str, Any]:
    try:
        # A pipe may have replaced the file since it was found: opening it without a writer would block for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            text = file.read(_MAX_BYTES + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b"\0"
    except OSError as error:
        raise from_os(error, f"settings file {path}") from error
    try:
        if len(text) > _MAX_BYTES:
            raise ValueError(f"it is longer than {_MAX_BYTES} bytes")
        found = _parse(path, text)
    except RecursionError:
        raise InvalidConfig(f"settings file {path} cannot be read: it is nested too deeply") from None
    except ValueError as error:
        raise InvalidConfig(f"settings file {path} cannot be read: {error}", hint="it has to be YAML or TOML") from None
    if not isinstance(found, dict) or not all(isinstance(section, dict) for section in found.values()):
        raise InvalidConfig(f"settings file {path} is not a table of sections", hint="as in  git: {shallow: true}")
    return found


def _parse(path: str, text: bytes) -> Any:
    if path.endswith(".toml"):
        import tomllib

        return tomllib.loads(text.decode())
    import yaml

    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, value in environ.items():
        if name.startswith("AW_") and "__" in name:
            section, _, key = name[3:].lower().partition("__")
            found.setdefault(section, {})[key] = _FromText(value, name)
    return found


def _from_flags(flags: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, value in flags.items():
        section, _, key = name.partition(".")
        found.setdefault(section, {})[key] = value
    return found


class _FromText:
    """A value given as text that may mean a number, a boolean or null."""

    def __init__(self, text: str, origin: str) -> None:
        self.text = text
        self.origin = origin


def _merge(
    values: dict[str, dict[str, Any]],
    origins: dict[str, str],
    layer: dict[str, dict[str, Any]],
    origin: str,
    directory: str,
) -> None:
    for section, keys in layer.items():
        for key, value in keys.items():
            name = f"{section}.{key}"
            where = value.origin if isinstance(value, _FromText) else origin
            if section in TABLES:
                values.setdefault(section, {})[key] = _row(section, name, value, where)
                origins[name] = where
                continue
            known = SECTIONS.get(section)
            if known is None or key not in known.__types__:
                raise _unknown(section, key, where)
            converted = _convert(name, known.__types__[key], value, where)
            if name in _PATHS and converted and "://" not in converted:
                converted = os.path.abspath(os.path.join(directory, os.path.expanduser(converted)))
            values.setdefault(section, {})[key] = converted
            origins[name] = where


def _convert(name: str, annotation: str, value: Any, where: str) -> Any:
    from msgspec import ValidationError, convert

    strict = True
    if isinstance(value, _FromText):
        strict = False
        value = value.text
        if value == "" and "None" in annotation:
            return None
        if annotation.startswith("list["):
            value = [part for part in value.split(",") if part]
    try:
        converted = convert(value, eval(annotation), strict=strict)
    except ValidationError as error:
        raise InvalidConfig(f"setting {name} from {where} is wrong: {error}", hint=f"it wants {annotation}") from None
    choices = _CHOICES.get(name)
    if choices and converted not in choices:
        raise InvalidConfig(f"setting {name} from {where} cannot be {converted!r}", hint=f"one of {', '.join(choices)}")
    return converted


def _row(section: str, name: str, value: Any, where: str) -> Value:
    """Parse one complete row of a table, from a file or as JSON from the environment."""
    import json

    from msgspec import ValidationError, convert

    kind, hint = TABLES[section]
    try:
        given = json.loads(value.text) if isinstance(value, _FromText) else value
    except ValueError as error:
        raise InvalidConfig(f"setting {name} from {where} is not JSON: {error}") from None
    if isinstance(given, dict):
        for key in given:
            if key not in kind.__types__:
                raise _unknown(name, key, where)
    try:
        row = convert(given, kind)
    except ValidationError as error:
        raise InvalidConfig(f"setting {name} from {where} is wrong: {error}", hint=hint) from None
    if isinstance(row, Webhook) and not (row.url.startswith(("https://", "http://")) and row.secret):
        raise InvalidConfig(f"setting {name} from {where} wants an http address and a secret", hint=hint)
    return row


def _unknown(section: str, key: str, where: str) -> InvalidConfig:
    from difflib import get_close_matches

    every = [f"{name}.{field}" for name, cls in SECTIONS.items() for field in cls.__types__]
    table = TABLES.get(str(section).partition(".")[0])
    every += [f"{section}.{field}" for field in table[0].__types__] if table else []
    near = get_close_matches(f"{section}.{key}", every, n=1)
    return InvalidConfig(
        f"unknown setting {section}.{key} in {where}",
        hint=f"did you mean {near[0]}?" if near else "aw config show lists every setting",
        details={"key": f"{section}.{key}", "origin": where},
    )

"""Configuration of a new workspace: the keys of `--config`."""

from __future__ import annotations

from workstead.errors import InvalidConfig
from workstead.model.policy import OPERATIONS, parse_policy
from workstead.model.source import is_plain_name
from workstead.model.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# keys of the settings' section `sandbox` for which a workspace may set stricter values
RUN_LIMITS = ("default", "network", "timeout_seconds", "memory_mb", "processes", "file_mb", "output_mb")
MAX_BYTES = 1024 * 1024  # the configuration is stored in the log, which must not hold files


class GitIdentity(Value):
    """The git author of this workspace; `enabled` makes `work/` a repository if it is not one."""

    enabled: bool = True
    user_name: str = "Workstead Agent"
    user_email: str = "agent@localhost"


class Share(Value):
    """Files that several workspaces see at /mnt/shares/NAME."""

    name: str
    path: str | None = None  # a host directory, which only the owner may set; None is a directory shared by the task
    mode: str = "ro"  # ro, rw


class Config(Value):
    """The configuration of one workspace."""

    max_size_mb: int | None = None  # quota: bytes added to the initial content, in MiB
    max_files: int | None = None  # quota: files and directories added to the initial content
    max_file_mb: int | None = None  # maximum size of one file
    allowed_operations: list[str] | None = None
    policy: str | dict[str, object] | None = None  # a preset, or differences from one; see model/policy.py
    run_limits: dict[str, object] = {}  # stricter than the settings' `sandbox`, for runs that set no limit themselves
    git_config: GitIdentity | None = None
    claude_md: str | None = None
    agents_md: str | None = None
    prompt: str | None = None
    repo_id: str | None = None
    repo_name: str | None = None
    shares: list[Share] = []
    mailbox: bool | None = None  # whether runs can exchange messages with the other workspaces of the task
    task_spec: dict[str, object] = {}
    context: dict[str, object] = {}

    def stated(self) -> dict[str, Any]:
        """Return only the keys that were set, as JSON for the log."""
        return {key: value for key, value in self.as_dict().items() if value not in (None, {}, [])}


def parse_config(given: Mapping[str, Any], *, defaults: Mapping[str, Any] | None = None) -> Config:
    """Validate every key and value and return the configuration; `defaults` apply to missing keys. Raise `Invalid` with
    the wrong key."""
    if not isinstance(given, dict):
        raise InvalidConfig("the configuration is not a JSON object", hint="as in --config '{\"max_size_mb\": 500}'")
    for key in given:
        if key not in Config.__types__:
            raise InvalidConfig(
                f"unknown key {key!r} in the configuration",
                hint=f"known keys: {', '.join(Config.__types__)}",
                details={"key": key},
            )
    fields: dict[str, Any] = {key: _CHECKS[key](key, value) for key, value in given.items() if value is not None}
    fields = {**(defaults or {}), **fields}
    size = sum(_json_bytes(key, value) for key, value in given.items())
    if size > MAX_BYTES:
        raise InvalidConfig(f"the configuration is {size} bytes long, over {MAX_BYTES}", hint="use a template")
    return Config(**fields)


def _json_bytes(key: str, value: Any) -> int:
    """Return the length of a value as JSON; refuse values that JSON or UTF-8 cannot represent, since the workspace's
    files are both."""
    import json

    try:
        return len(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConfig(
            f"{key} in the configuration cannot be written as JSON: {error}",
            hint="use UTF-8 text, numbers, lists and objects",
            details={"key": key},
        ) from None


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(key, value, "text")
    return value


def _size(key: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise _wrong(key, value, "a whole number above 0")
    return value


def _object(key: str, value: Any) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _wrong(key, value, "an object")
    return value


def _operations(key: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(item in OPERATIONS for item in value):
        raise _wrong(key, value, f"a list of {', '.join(OPERATIONS)}")
    return value


def _policy(key: str, value: Any) -> str | dict[str, object]:
    parse_policy(value)
    return value  # type: ignore[no-any-return]


def _run_limits(key: str, value: Any) -> dict[str, object]:
    for name, limit in _object(key, value).items():
        if name not in RUN_LIMITS:
            raise InvalidConfig(f"unknown key {key}.{name} in the configuration", details={"key": f"{key}.{name}"})
        if name in ("default", "network"):
            _text(f"{key}.{name}", limit)
        elif name == "timeout_seconds":
            if not isinstance(limit, int | float) or isinstance(limit, bool) or not limit > 0:
                raise _wrong(f"{key}.{name}", limit, "a number above 0")
        else:
            _size(f"{key}.{name}", limit)
    return value  # type: ignore[no-any-return]


def _git(key: str, value: Any) -> GitIdentity | None:
    if isinstance(value, bool):
        return GitIdentity(enabled=value)
    fields: dict[str, Any] = _object(key, value)
    for name, text in fields.items():
        if name not in GitIdentity.__types__:
            raise InvalidConfig(f"unknown key {key}.{name} in the configuration", details={"key": f"{key}.{name}"})
        wanted = bool if name == "enabled" else str
        if not isinstance(text, wanted) or (wanted is str and any(char in str(text) for char in "\n\0<>")):
            raise _wrong(f"{key}.{name}", text, "true or false" if wanted is bool else "one line without < and >")
    return GitIdentity(**fields)


def _shares(key: str, value: Any) -> list[Share]:
    if not isinstance(value, list):
        raise _wrong(key, value, "a list of objects")
    found = [_share(f"{key}[{number}]", each) for number, each in enumerate(value)]
    if len({share.name for share in found}) < len(found):
        raise _wrong(key, value, "without a name that is there twice")
    return found


def _share(key: str, value: Any) -> Share:
    fields = _object(key, value)
    for name, text in fields.items():
        if name not in Share.__types__:
            raise InvalidConfig(f"unknown key {key}.{name} in the configuration", details={"key": f"{key}.{name}"})
        if not isinstance(text, str) and not (name == "path" and text is None):
            raise _wrong(f"{key}.{name}", text, "text")
    name, path, mode = str(fields.get("name", "")), fields.get("path"), str(fields.get("mode", "ro"))
    if not is_plain_name(name):
        raise _wrong(f"{key}.name", name, "made of letters, digits, dot, dash and underscore")
    if mode not in ("ro", "rw"):
        raise _wrong(f"{key}.mode", mode, "ro or rw")
    if path is not None and (not str(path).startswith("/") or "\0" in str(path)):
        raise _wrong(f"{key}.path", path, "an absolute path")
    return Share(name=name, path=None if path is None else str(path), mode=mode)


def _truth(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(key, value, "true or false")
    return value


def _wrong(key: str, value: Any, wanted: str) -> InvalidConfig:
    shown = repr(value)
    return InvalidConfig(
        f"{key} in the configuration is {shown[:60]}", hint=f"it has to be {wanted}", details={"key": key}
    )


_CHECKS: dict[str, Any] = {
    "max_size_mb": _size,
    "max_files": _size,
    "max_file_mb": _size,
    "allowed_operations": _operations,
    "policy": _policy,
    "run_limits": _run_limits,
    "git_config": _git,
    "claude_md": _text,
    "agents_md": _text,
    "prompt": _text,
    "repo_id": _text,
    "repo_name": _text,
    "shares": _shares,
    "mailbox": _truth,
    "task_spec": _object,
    "context": _object,
}

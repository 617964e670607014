"""Workspace ids, and the mapping of their parts to directory names.

An id is `TASK/AGENT`; a bare `TASK` means `TASK/main`. A part is any text of 1 to 200 bytes without `/` and NUL. The
mapping from parts to directory names is injective, so two ids never share a directory: simple parts are unchanged, all
others are escaped and begin with `~`, which no simple part does.
"""

from __future__ import annotations

from workstead.errors import InvalidId

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NewType

    WorkspaceId = NewType("WorkspaceId", str)
    TaskId = NewType("TaskId", str)
    AgentId = NewType("AgentId", str)
else:
    WorkspaceId = TaskId = AgentId = str

DEFAULT_AGENT = "main"
MAX_PART_BYTES = 200
MAX_NAME_BYTES = 255  # limit of Linux file systems for one name

_START = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_SIMPLE = _START | {"."}
_PLAIN_BYTES = frozenset("".join(_SIMPLE).encode())


def parse_id(text: str) -> tuple[TaskId, AgentId]:
    """Split an id into task and agent; refuse an invalid id."""
    task, slash, agent = text.partition("/")
    return TaskId(check_part(task, text, "task")), AgentId(check_part(agent, text, "agent") if slash else DEFAULT_AGENT)


def format_id(task: str, agent: str) -> WorkspaceId:
    """Return the id of a task's agent."""
    return WorkspaceId(f"{task}/{agent}")


def check_part(part: str, whole: str | None = None, role: str = "task") -> str:
    """Return the part if it is legal; raise an error with the reason otherwise."""
    problem = _problem(part)
    if problem:
        shown = part if whole is None else whole
        raise InvalidId(
            f"workspace id {shown[:80]!r} is not usable: the {role} {problem}",
            hint="an id is TASK or TASK/AGENT; each part is 1 to 200 bytes of text without '/' and NUL, and not '..'",
        )
    return part


def _problem(part: str) -> str | None:
    if not part:
        return "is empty"
    if "\0" in part:
        return "holds a NUL byte"
    if "/" in part:
        return "holds a '/'"
    if part == "..":
        return "is '..'"
    try:
        size = len(part.encode())
    except UnicodeEncodeError:
        return "is not valid UTF-8"
    return f"is {size} bytes long, over {MAX_PART_BYTES}" if size > MAX_PART_BYTES else None


def directory_name(part: str) -> str:
    """Return the directory name for one part of an id: readable where possible, unique for each part."""
    if part[0] in _START and _SIMPLE.issuperset(part):
        return part
    escaped = "~" + "".join(chr(byte) if byte in _PLAIN_BYTES else f"%{byte:02X}" for byte in part.encode())
    if len(escaped) <= MAX_NAME_BYTES:
        return escaped
    # Too long to escape: use a digest after a second `~`, which no escaped name has in that position.
    from workstead.model.digest import sha256

    return "~~" + sha256(part.encode()).hexdigest()


_QUALITIES = (
    "amber bold brave bright calm clear crisp dry early fair fine fresh glad green keen kind "
    "light lucky mild neat new plain proud quick quiet ready sharp still swift warm wide young"
).split()
_THINGS = (
    "birch brook cedar cliff cloud coast crane creek dune elm fern field finch grove harbor heron "
    "hill lake lark maple meadow oak otter pine pond reef ridge river robin slate spruce willow"
).split()


def fresh_name(number: int) -> str:
    """Return a memorable task name from 30 random bits."""
    tail = "".join("0123456789abcdefghjkmnpqrstvwxyz"[number >> shift & 31] for shift in (10, 15, 20, 25))
    return f"{_QUALITIES[number & 31]}-{_THINGS[number >> 5 & 31]}-{tail}"

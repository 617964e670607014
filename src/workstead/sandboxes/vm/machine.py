"""The configuration of a virtual machine: a command can reuse a running machine only if all of it is equal."""

from __future__ import annotations

from workstead.model.value import Value


class Machine(Value):
    """A virtual machine around one workspace."""

    workspace: str  # host path; '' for one that is started only to be saved
    public_mount: str = "/mnt/workspace"
    read_only: tuple[str, ...] = ()  # names at the top of the workspace
    parts: tuple[str, ...] = ()  # directories at the top of the workspace that the guest cannot rename or remove
    mounts: tuple[tuple[str, str, bool, bool], ...] = ()  # host path, path inside, writable, executable
    tools: tuple[str, ...] = ()
    executable: bool = True  # whether writable files can be executed
    uid: int  # its user, on the host and in the guest
    gid: int
    user: str = "agent"
    hostname: str = "workstead"
    memory_mb: int = 1024
    cpus: int = 1
    emulated: bool = False
    holder: int | None = None  # see `Confinement`
    launcher: str = ""  # the bwrap around it
    patience_seconds: float = 20.0  # timeout for an answer of the guest

    @property
    def mode(self) -> str:
        """Return its name in the enforcement statement."""
        return "vm/tcg" if self.emulated else "vm/kvm"

    def shape(self) -> str:
        """Return a digest of the whole configuration."""
        import json

        from workstead.model.digest import blake2b

        return blake2b(json.dumps(self.as_dict()).encode(), digest_size=8).hexdigest()

"""A project's `aw.yaml` comes with a stranger's repository, or is written by an agent: it cannot loosen anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from people import Person
from workstead.errors import InvalidConfig
from workstead.local import Local
from workstead.settings import SECTIONS, Settings, load_settings

# keys that a project may set: a value that is stricter than the default, and one that is looser
STRICTER = {
    "storage.quota": ("image", "metering"),
    "git.lfs_max_mb": (1, 5000),
    "git.max_mb": (1, 50000),
    "git.max_files": (1, 5_000_000),
    "workspaces.default_max_size_mb": (1, 1001),
    "workspaces.default_max_files": (1, 0),
    "workspaces.default_max_file_mb": (1, -1),
    "sandbox.default": ("vm", "none"),
    "sandbox.network": (None, "host"),
    "sandbox.timeout_seconds": (5.5, 0),
    "sandbox.memory_mb": (100, 5000),
    "sandbox.processes": (10, None),
    "sandbox.file_mb": (1, 0),
    "sandbox.output_mb": (1, 65),
    "policy.read": ("ask", None),
    "policy.write": ("deny", None),
    "policy.overwrite": ("deny", "allow"),
    "policy.delete": ("deny", "allow"),
    "policy.move": ("ask", None),
    "policy.execute": ("deny", "allow"),
    "policy.network": ("deny", "allow"),
    "policy.apply": ("deny", "allow"),
    "policy.destroy": ("deny", "allow"),
    "policy.approval_timeout_seconds": (1, 301),
}
ONLY_LOOSER = {"git.submodules": True, "git.lfs": True}  # the defaults are as strict as it gets


class Places:
    def __init__(self, top: Path) -> None:
        self.project, self.user = top / "project", top / "config" / "aw"
        self.project.mkdir()
        self.user.mkdir(parents=True)
        self._environ = {"HOME": str(top), "XDG_CONFIG_HOME": str(top / "config")}

    def load(self) -> Settings:
        return load_settings(self._environ, str(self.project), system_directory="")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def _line(name: str, value: object) -> str:
    import json

    section, _, key = name.partition(".")
    return f"{section}: {{{key}: {json.dumps(value)}}}\n"


def _another(value: object) -> object:
    """A value of the same type that is not the default."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return "x" if value is None or isinstance(value, str) else ["/x"]


def _refused_and_the_owner_is_not(places: Places, name: str, value: object) -> None:
    """The twin: the same file is taken where only the owner writes."""
    text = _line(name, value)
    (places.project / "aw.yaml").write_text(text)
    with pytest.raises(InvalidConfig, match="may not set") as refused:
        places.load()
    assert refused.value.details == {"key": name, "origin": str(places.project / "aw.yaml")}
    assert name in refused.value.message
    assert "~/.config/aw/aw.yaml" in refused.value.hint
    os.rename(places.project / "aw.yaml", places.user / "aw.yaml")
    assert places.load().origins[name] == str(places.user / "aw.yaml")
    os.unlink(places.user / "aw.yaml")


NUMBERS_OR_NULL = {
    "storage.max_cache_gb": 1.5,
    "storage.verify_every_days": 1.5,
    "workspaces.max_task_size_gb": 1.5,
    "workspaces.max_total_size_gb": 1.5,
    "workspaces.retention_days": 1.5,
    "workspaces.sweep_every_hours": 1.5,
    "sandbox.vm_cpus": 1,
    "snapshots.max_total_gb": 1.5,
}
CHOICES = {"storage.mechanism": "copy", "sandbox.vm_emulation": "allow"}


def test_every_setting_that_is_not_listed_is_the_owners(places: Places) -> None:
    tried = 0
    for section, cls in SECTIONS.items():
        for key in cls.__types__:
            name = f"{section}.{key}"
            if name not in STRICTER and name not in ONLY_LOOSER:
                value = {**NUMBERS_OR_NULL, **CHOICES}.get(name, _another(cls.__defaults__[key]))
                _refused_and_the_owner_is_not(places, name, value)
                tried += 1
    assert tried > 40
    for name, value in ONLY_LOOSER.items():
        _refused_and_the_owner_is_not(places, name, value)


def test_a_listed_setting_is_taken_only_where_it_is_stricter(places: Places) -> None:
    for name, (stricter, looser) in STRICTER.items():
        if stricter is not None:
            (places.project / "aw.yaml").write_text(_line(name, stricter))
            assert places.load().origins[name] == str(places.project / "aw.yaml"), name
        if looser is not None:
            _refused_and_the_owner_is_not(places, name, looser)
    _refused_and_the_owner_is_not(places, "sandbox.processes", None)


def test_the_owners_own_value_is_what_counts_and_not_the_default(places: Places) -> None:
    (places.user / "aw.yaml").write_text(
        "workspaces: {trash_days: 30}\nsandbox: {memory_mb: 64, default: vm, network: host}\n"
        "policy: {read: deny}\nsnapshots: {keep_daily_days: 400}\n"
    )
    for default in (
        "workspaces: {trash_days: 7}",
        "snapshots: {keep_daily_days: 90}",
        "sandbox: {memory_mb: 4096}",
        "sandbox: {default: bubblewrap}",
        "sandbox: {default: auto}",
        "policy: {read: ask}",
    ):
        (places.project / "aw.yaml").write_text(default)
        with pytest.raises(InvalidConfig, match="may not set"):
            places.load()
    (places.project / "aw.yaml").write_text("workspaces: {trash_days: 30}\nsandbox: {memory_mb: 63, network: none}\n")
    found = places.load()
    assert (found.sandbox.memory_mb, found.sandbox.network, found.sandbox.default) == (63, "none", "vm")


@pytest.mark.parametrize(
    "text",
    [
        "sandbox: {timeout_seconds: .nan}",
        "sandbox: {memory_mb: -1}",
        "sandbox: {timeout_seconds: -.inf}",
        "sandbox: {memory_mb: true}",
        "sandbox: {memory_mb: [1]}",
        "sandbox: &a {memory_mb: *a}",
        "a: " + "[" * 100_000,
        "sandbox: {memory_mb: 1" + "0" * 5000 + "}",
        "# " + "x" * (1 << 20),
    ],
)
def test_a_value_that_is_no_limit_is_an_error_and_no_traceback(places: Places, text: str) -> None:
    (places.project / "aw.yaml").write_text(text)
    with pytest.raises(InvalidConfig):
        places.load()


def test_what_a_project_asks_for_holds_for_its_own_workspaces_only(person: Person) -> None:
    project = person.folder("project", {"f": "1"})
    other = person.folder("other", {"f": "1"})
    person.aw_ok("create", "other/a", "--source", str(other))
    (project / "aw.yaml").write_text("sandbox: {file_mb: 1}\npolicy: {write: deny}\n")
    person.aw_ok("create", "own/a", "--source", str(project), cwd=project)
    write = ("sh", "-c", "head -c 3000000 /dev/zero > big; wc -c < big")
    for directory in (project, other):
        own = person.aw("run", "own/a", "--", *write, cwd=directory)
        assert "3000000" not in own.stdout
        assert person.aw_ok("run", "other/a", "--", *write, cwd=directory) == "3000000\n"
    assert person.aw_json("policy", "show", "other/a", cwd=project)["write"] == "allow"
    assert person.aw_json("policy", "show", "own/a", cwd=other)["write"] == "deny"
    person.aw_ok("fork", "own/a", "--as", "own/b", cwd=other)
    assert "3000000" not in person.aw("run", "own/b", "--", *write, cwd=other).stdout
    mine = {"AW_SANDBOX__FILE_MB": "9"}  # of the owner, and not a project's: a new workspace records nothing
    person.aw_ok("create", "own/c", cwd=project, **mine)
    assert person.aw_ok("run", "own/c", "--", *write, cwd=project, **mine) == "3000000\n"


def test_no_command_runs_under_a_project_that_loosens_something(person: Person) -> None:
    project, elsewhere = person.folder("project", {"f": "1"}), person.directory / "elsewhere"
    person.aw_ok("create", "t/a")
    for text in (
        f"storage: {{workspaces_path: {elsewhere}}}",
        "snapshots: {around_runs: false}",
        "snapshots: {keep_all_days: 0, keep_hourly_days: 0, keep_daily_days: 0}",
        "sandbox: {memory_mb: null}",
        "sandbox: {memory_mb: 0}",
    ):
        (project / "aw.yaml").write_text(text)
        for words in (("create", "t/b"), ("run", "t/a", "--", "true"), ("sweep",)):
            done = person.aw(*words, cwd=project)
            assert (done.returncode, "may not set" in done.stderr) == (2, True), done.stderr
    assert [each["workspace_id"] for each in person.aw_json("list")] == ["t/a"]
    assert not elsewhere.exists()


def test_a_server_hands_a_projects_limits_on_to_the_processes_that_it_starts(places: Places) -> None:
    (places.project / "aw.yaml").write_text("sandbox: {memory_mb: 50}\n")
    found = places.load()
    handed = load_settings(found.as_environment(), "/", system_directory="")
    assert (handed.run_limits, handed.sandbox_for({}).memory_mb) == ({"memory_mb": 50}, 4096)
    assert handed.sandbox == found.sandbox


def test_recorded_limits_never_widen_what_the_owner_sets_later(workspaces: Local) -> None:
    desk = workspaces.create(task="t", agent="a", config={"run_limits": {"processes": 9, "memory_mb": 9999}})
    assert desk.config["run_limits"] == {"processes": 9, "memory_mb": 9999}
    held = load_settings({}, "/", system_directory="").sandbox_for(desk.config["run_limits"])
    assert (held.processes, held.memory_mb) == (9, 4096)
    for wrong in ({"uid": 0}, {"memory_mb": 0}, {"memory_mb": "1"}, {"timeout_seconds": float("nan")}, {"network": 1}):
        with pytest.raises(InvalidConfig, match="run_limits"):
            workspaces.create(task="t", agent="b", config={"run_limits": wrong})

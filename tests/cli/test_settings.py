"""Settings: in which order they hold, where each came from, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from workstead.errors import InvalidConfig
from workstead.settings import SECTIONS, Settings, load_settings

from .aw_command import Aw


@pytest.fixture
def aw(home_path: str, capsys: pytest.CaptureFixture[str]) -> Aw:
    return Aw(home_path, capsys)


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """The three directories in which settings are looked for."""
    found = {"system": tmp_path / "etc", "user": tmp_path / "config" / "aw", "project": tmp_path / "project"}
    for path in found.values():
        path.mkdir(parents=True)
    return found


@pytest.fixture
def load(places: dict[str, Path]) -> Callable[..., Settings]:
    def load(environ: dict[str, str] | None = None, flags: dict[str, object] | None = None) -> Settings:
        variables = {"XDG_CONFIG_HOME": str(places["user"].parent), **(environ or {})}
        return load_settings(variables, str(places["project"]), flags, system_directory=str(places["system"]))

    return load


def test_later_places_win_and_each_value_knows_its_origin(
    places: dict[str, Path], load: Callable[..., Settings]
) -> None:
    assert load().sandbox.memory_mb == 4096
    assert load().origin("sandbox", "memory_mb") == "default"
    for number, (name, path) in zip((7000, 6000, 50), places.items(), strict=True):  # a project can only lower it
        (path / "aw.yaml").write_text(f"sandbox: {{memory_mb: {number}}}\n")
        assert load().sandbox.memory_mb == number, name
        assert load().origin("sandbox", "memory_mb") == str(path / "aw.yaml")
    variable = {"AW_SANDBOX__MEMORY_MB": "4000"}
    assert load(variable).sandbox.memory_mb == 4000
    assert load(variable).origin("sandbox", "memory_mb") == "AW_SANDBOX__MEMORY_MB"
    both = load(variable, {"sandbox.memory_mb": 5})
    assert (both.sandbox.memory_mb, both.origin("sandbox", "memory_mb")) == (5, "flag")
    assert both.sandbox.processes == 1024


def test_places_are_merged_key_by_key(places: dict[str, Path], load: Callable[..., Settings]) -> None:
    (places["system"] / "aw.toml").write_text("[git]\nshallow = false\n[workspaces]\ntrash_days = 1.5\n")
    (places["user"] / "aw.yaml").write_text("git:\n  default_branch: trunk\nworkspaces:\n  retention_days: 3\n")
    found = load()
    assert (found.git.shallow, found.git.default_branch) == (False, "trunk")
    assert (found.workspaces.trash_days, found.workspaces.retention_days) == (1.5, 3)


def test_yaml_and_toml_say_the_same(places: dict[str, Path], load: Callable[..., Settings]) -> None:
    yaml = places["user"] / "aw.yaml"
    yaml.write_text("storage: {min_free_mb: 3}\nsandbox: {default: bubblewrap}\nfiles: {old_mounts: [/a/, /b/]}\n")
    from_yaml = load()
    yaml.unlink()
    (places["user"] / "aw.toml").write_text(
        '[storage]\nmin_free_mb = 3\n[sandbox]\ndefault = "bubblewrap"\n[files]\nold_mounts = ["/a/", "/b/"]\n'
    )
    from_toml = load()
    assert from_yaml.replace(origins={}) == from_toml.replace(origins={})
    yaml.write_text("")
    with pytest.raises(InvalidConfig, match="both"):
        load()


def test_variables_are_text_and_mean_numbers_booleans_lists_or_nothing(load: Callable[..., Settings]) -> None:
    found = load(
        {
            "AW_WORKSPACES__TRASH_DAYS": "0.5",
            "AW_WORKSPACES__CLEANUP_ON_SHUTDOWN": "true",
            "AW_WORKSPACES__DEFAULT_MAX_SIZE_MB": "",
            "AW_GIT__DEFAULT_BRANCH": "5",
            "AW_FILES__OLD_MOUNTS": "/a/,/b/",
            "AW_HOME": "/x",
            "AW_TOKEN": "y",
        }
    )
    assert found.workspaces.trash_days == 0.5
    assert found.workspaces.cleanup_on_shutdown is True
    assert found.workspaces.default_max_size_mb is None
    assert found.git.default_branch == "5"
    assert found.files.old_mounts == ["/a/", "/b/"]


def test_settings_can_be_handed_on_as_variables(places: dict[str, Path], load: Callable[..., Settings]) -> None:
    (places["user"] / "aw.yaml").write_text("workspaces: {trash_days: 2, default_max_size_mb: null}\n")
    assert load(load().as_environment()).replace(origins={}) == load().replace(origins={})


def test_a_relative_path_is_relative_to_the_file_that_says_it(
    places: dict[str, Path], load: Callable[..., Settings]
) -> None:
    (places["user"] / "aw.yaml").write_text("storage: {workspaces_path: ./desks}\n")
    assert load().storage.workspaces_path == str(places["user"] / "desks")
    variable = {"AW_STORAGE__WORKSPACES_PATH": "desks"}
    assert load(variable).storage.workspaces_path == str(places["project"] / "desks")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("git: {shalow: true}", "git.shalow"),
        ("gti: {shallow: true}", "gti.shallow"),
        ("git: {shallow: maybe}", "git.shallow"),
        ("git: {shallow: 1}", "git.shallow"),
        ("server: {port: '8'}", "server.port"),
        ("server: {port: null}", "server.port"),
        ("policy: {read: perhaps}", "policy.read"),
        ("sandbox: {default: chroot}", "sandbox.default"),
        ("origins: {x: y}", "origins.x"),
        ("git: 5", "table of sections"),
        ("[1, 2]", "table of sections"),
        ("{", "cannot be read"),
        ("\x00", "cannot be read"),
        ("1: {2: 3}", "1.2"),
    ],
)
def test_a_wrong_setting_in_a_file_is_named_with_its_file(
    places: dict[str, Path], load: Callable[..., Settings], text: str, named: str
) -> None:
    (places["user"] / "aw.yaml").write_text(text)
    with pytest.raises(InvalidConfig) as caught:
        load()
    assert named in caught.value.message
    assert str(places["user"] / "aw.yaml") in caught.value.message


@pytest.mark.parametrize("text", ["[git]\nshalow = true\n", "git = 5\n", "[git\n", "[git]\nshallow = 'x'\n"])
def test_a_wrong_setting_in_toml_is_refused_too(
    places: dict[str, Path], load: Callable[..., Settings], text: str
) -> None:
    (places["project"] / "aw.toml").write_text(text)
    with pytest.raises(InvalidConfig):
        load()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("AW_GIT__SHALOW", "1"),
        ("AW_NOPE__X", "1"),
        ("AW_SERVER__PORT", "x"),
        ("AW_POLICY__READ", "maybe"),
    ],
)
def test_a_wrong_variable_is_named(load: Callable[..., Settings], variable: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=variable):
        load({variable: value})


def test_a_near_miss_is_suggested(load: Callable[..., Settings]) -> None:
    with pytest.raises(InvalidConfig) as caught:
        load({"AW_GIT__SHALOW": "1"})
    assert caught.value.hint == "did you mean git.shallow?"
    assert caught.value.details == {"key": "git.shalow", "origin": "AW_GIT__SHALOW"}


# -- through the door --------------------------------------------------------------------------------------------------


def test_config_show_lists_every_setting(aw: Aw) -> None:
    shown = aw.ok("config", "show")
    assert set(shown) == {*SECTIONS, "agents"}
    for section, cls in SECTIONS.items():
        assert set(shown[section]) == set(cls.__types__)
    assert aw.ok("config") == shown
    assert "  port: 8757" in aw("config", "show").out.splitlines()
    assert not os.path.exists(aw.home)


def test_config_show_hides_the_password_of_a_database(aw: Aw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_STORE__URL", "postgresql://me:s3cret@127.0.0.1:1/db")
    for words in (["config"], ["config", "show", "--origin"]):
        shown = aw(*words).out + str(aw.ok(*words))
        assert "s3cret" not in shown
        assert "postgresql://me:" in shown


def test_config_show_says_where_each_value_came_from(aw: Aw, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("aw.yaml").write_text("sandbox: {memory_mb: 1}\n")
    monkeypatch.setenv("AW_GIT__SHALLOW", "false")
    shown = aw.ok("config", "show", "--origin")
    assert shown["sandbox"]["memory_mb"] == {"value": 1, "origin": os.path.abspath("aw.yaml")}
    assert shown["git"]["shallow"] == {"value": False, "origin": "AW_GIT__SHALLOW"}
    assert shown["store"]["url"] == {"value": None, "origin": "default"}
    assert "# AW_GIT__SHALLOW" in aw("config", "show", "--origin").out


def test_a_wrong_setting_stops_every_command_before_anything_is_made(aw: Aw, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("aw.yaml").write_text("git: {shalow: true}\n")
    for command in (["create", "t/a"], ["list"], ["config", "show"], ["destroy", "t/a"]):
        answer = aw.json(*command)
        assert (answer.code, answer.error["code"]) == (2, "invalid_config")
        assert "git.shalow" in answer.error["message"]
    assert not os.path.exists(aw.home)
    Path("aw.yaml").unlink()
    monkeypatch.setenv("AW_BOGUS__KEY", "1")
    assert aw.json("create", "t/a").error["details"] == {"key": "bogus.key", "origin": "AW_BOGUS__KEY"}


def test_settings_reach_the_verbs(aw: Aw, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Path("aw.yaml").write_text("workspaces: {default_max_size_mb: 7}\n")
    monkeypatch.setenv("AW_STORAGE__WORKSPACES_PATH", "desks")
    made = aw.ok("create", "t/a")
    assert made["path"] == os.path.abspath("desks/t/a")
    assert made["config"]["max_size_mb"] == 7
    monkeypatch.setenv("AW_WORKSPACES__DEFAULT_MAX_SIZE_MB", "")
    assert "max_size_mb" not in aw.ok("create", "t/b")["config"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("sandbox: {default: none}", "sandbox.default"),
        ("sandbox: {network: host}", "sandbox.network"),
        ("sandbox: {read_write: [/]}", "sandbox.read_write"),
        ("sandbox: {secrets: ['h x /etc/passwd']}", "sandbox.secrets"),
        ("store: {url: 'postgresql://elsewhere/x'}", "store.url"),
        ("agents: {claude: {command: [sh]}}", "agents.claude"),
        ("workspaces: {trash_days: 0}", "workspaces.trash_days"),
        ("workspaces: {retention_days: 0}", "workspaces.retention_days"),
        ("workspaces: {max_total_size_gb: 0.001}", "workspaces.max_total_size_gb"),
        ("workspaces: {default_max_size_mb: 1001}", "workspaces.default_max_size_mb"),
        ("workspaces: {default_max_size_mb: null}", "workspaces.default_max_size_mb"),
    ],
)
def test_a_project_cannot_open_its_own_sandbox(text: str, key: str, tmp_path: Path) -> None:
    """The same file as the user's own is taken: it is the place that is not trusted."""
    project, config = tmp_path / "project", tmp_path / "config" / "aw"
    project.mkdir()
    config.mkdir(parents=True)
    (project / "aw.yaml").write_text(text)
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    with pytest.raises(InvalidConfig, match="can only make its own workspaces stricter") as refused:
        load_settings(environ, str(project), system_directory=str(tmp_path / "no"))
    assert refused.value.details["key"] == key
    os.rename(project / "aw.yaml", config / "aw.yaml")
    loaded = load_settings(environ, str(project), system_directory=str(tmp_path / "no"))
    assert loaded.origins[key] == str(config / "aw.yaml")


def test_a_project_may_make_its_sandbox_tighter(tmp_path: Path) -> None:
    (tmp_path / "aw.yaml").write_text("sandbox: {default: bubblewrap, network: none, memory_mb: 100}\n")
    loaded = load_settings({"HOME": str(tmp_path / "u")}, str(tmp_path), system_directory=str(tmp_path / "no"))
    assert loaded.sandbox.memory_mb == 100


def test_a_project_may_ask_for_less_than_the_owner_allows_and_not_for_more(
    places: dict[str, Path], load: Callable[..., Settings]
) -> None:
    (places["user"] / "aw.yaml").write_text("workspaces: {default_max_size_mb: 50}\n")
    (places["project"] / "aw.yaml").write_text("workspaces: {default_max_size_mb: 20, default_max_files: 9}\n")
    assert (load().workspaces.default_max_size_mb, load().workspaces.default_max_files) == (20, 9)
    (places["project"] / "aw.yaml").write_text("workspaces: {default_max_size_mb: 1000}\n")
    with pytest.raises(InvalidConfig, match="default_max_size_mb"):
        load()


def test_a_project_may_spell_out_every_default(tmp_path: Path) -> None:
    (tmp_path / "aw.yaml").write_text(
        "sandbox: {default: auto, network: none, public_mount: /mnt/workspace}\nstore: {url: null}\n"
    )
    load_settings({"HOME": str(tmp_path / "u")}, str(tmp_path), system_directory=str(tmp_path / "no"))

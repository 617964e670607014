"""The configuration of a workspace: every key checked, and the wrong one named."""

from __future__ import annotations

from typing import Any

import pytest

from workstead.errors import InvalidConfig
from workstead.model.config import Config, GitIdentity, parse_config


def test_what_was_said_is_kept_and_nothing_else() -> None:
    given = {
        "max_size_mb": 500,
        "allowed_operations": ["read"],
        "git_config": {"enabled": True, "user_name": "Ada", "user_email": "ada@example.org"},
        "claude_md": "be kind",
        "agents_md": "be quick",
        "prompt": "fix it",
        "repo_id": "r1",
        "repo_name": "shop",
        "task_spec": {"goal": [1, {"deep": None}]},
        "context": {"k": "v"},
    }
    assert parse_config(given).stated() == given
    assert parse_config({}).stated() == {}
    assert parse_config({}, defaults={"max_size_mb": 7, "max_files": None}).stated() == {"max_size_mb": 7}
    assert parse_config({"prompt": None}) == Config()


def test_what_was_kept_reads_as_the_same_configuration() -> None:
    config = parse_config({"git_config": True, "max_size_mb": 3, "context": {"a": 1}})
    assert parse_config(config.stated()) == config


def test_git_config_may_be_just_a_word() -> None:
    assert parse_config({"git_config": True}).git_config == GitIdentity()
    assert parse_config({"git_config": False}).git_config == GitIdentity(enabled=False)
    assert parse_config({"git_config": {"user_name": "Ada"}}).git_config == GitIdentity(user_name="Ada")


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"max_size": 5}, "max_size"),
        ({"max_size_mb": 0}, "max_size_mb"),
        ({"max_size_mb": -1}, "max_size_mb"),
        ({"max_size_mb": True}, "max_size_mb"),
        ({"max_size_mb": "5"}, "max_size_mb"),
        ({"max_size_mb": 1.5}, "max_size_mb"),
        ({"allowed_operations": "read"}, "allowed_operations"),
        ({"allowed_operations": ["fly"]}, "allowed_operations"),
        ({"allowed_operations": [["read"]]}, "allowed_operations"),
        ({"git_config": "Ada"}, "git_config"),
        ({"git_config": {"name": "Ada"}}, "git_config.name"),
        ({"git_config": {"enabled": "yes"}}, "git_config.enabled"),
        ({"git_config": {"user_name": "A\nB"}}, "git_config.user_name"),
        ({"git_config": {"user_email": "<a@b>"}}, "git_config.user_email"),
        ({"claude_md": 1}, "claude_md"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": "\udcff"}, "prompt"),
        ({"task_spec": []}, "task_spec"),
        ({"task_spec": {"a": "\ud800"}}, "task_spec"),
        ({"task_spec": {"a": float("nan")}}, "task_spec"),
        ({"context": "x"}, "context"),
        ({"context": {"a": b"x"}}, "context"),
    ],
)
def test_a_wrong_key_or_value_is_named(given: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_config(given)
    assert key in caught.value.message
    assert caught.value.details == {"key": key}
    caught.value.message.encode()


@pytest.mark.parametrize("given", [[], "x", 5])
def test_something_that_is_no_object_is_refused(given: Any) -> None:
    with pytest.raises(InvalidConfig, match="not a JSON object"):
        parse_config(given)


@pytest.mark.parametrize("given", [{"prompt": "x" * 2**20}, {"task_spec": {"a": "x" * 2**20}}])
def test_the_log_is_no_place_for_files(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match="over"):
        parse_config(given)


def test_something_too_deep_for_json_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(InvalidConfig, match="task_spec"):
        parse_config({"task_spec": deep})
    while deep:  # taken apart by hand: forgetting it at once would recurse as deep
        deep = deep["a"]

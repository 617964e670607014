"""The examples run, as an ordinary user and as root, without a network."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from people import Person

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SAID = {
    "parallel_agents.py": [
        "check completed, 1 files changed",
        "applied ",
        "1 file changed, 1 insertion(+), 1 deletion(-)",
    ],
    "rollouts.py": ["mean reward 4.5, best 8"],
    "chat_sessions.py": [
        "ada's answers: add a title, add a table, add a mistake",
        "after going back: ['add a title', 'add a table']",
        "after undo: ['add a title', 'add a table', 'add a mistake']",
        "bob's page is his own: ['hello']",
        "after a reset ada has 0 files",
    ],
}


@pytest.mark.parametrize("name", SAID)
def test_example(name: str, person: Person) -> None:
    said = person.python((EXAMPLES / name).read_text())
    for line in SAID[name]:
        assert line in said
    assert person.aw_json("list") == [], "an example leaves nothing behind"


def test_every_example_is_tested_listed_and_short() -> None:
    readme = (EXAMPLES / "README.md").read_text()
    found = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert found == sorted(SAID)
    for name in found:
        text = (EXAMPLES / name).read_text()
        assert f"]({name})" in readme
        assert len(text.splitlines()) < 60
        assert ast.get_docstring(ast.parse(text))

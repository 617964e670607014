"""Agents in workspaces, through `aw run`: presets, prompts, a real agent from PyPI, and the test suite of a project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from needs import need, need_program

PROGRAM = str(Path(__file__).resolve().parents[2] / "aw")


class Desk:
    """`aw` in a project's folder, with a home and a user of its own."""

    def __init__(self, home: str, base: Path) -> None:
        self.project = base / "project"
        self.project.mkdir()
        self.user = base / "ada"
        self.user.mkdir()
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(self.user), "AW_HOME": home}

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *arguments],
            env={**self.environment, **environment},
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def install(self, name: str, script: str) -> None:
        """Put a stand-in for an agent where its installer would."""
        place = self.user / ".local" / "bin"
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(f"#!/bin/sh\n{script}\n")
        (place / name).chmod(0o755)

    def diff(self) -> str:
        found = json.loads(self("list", "--format", "json").stdout)
        return self("diff", found[-1]["workspace_id"]).stdout


@pytest.fixture
def desk(home_path: str, tmp_path: Path) -> Desk:
    need_program("bwrap")
    return Desk(home_path, tmp_path)


STAND_IN = """
echo "$0"; printf "<%s>" "$@"; echo
echo "key=$ANTHROPIC_API_KEY$OPENAI_API_KEY other=$OTHER"
echo "$AW_PROMPT" > done.txt
"""


@pytest.mark.parametrize("name", ["claude", "codex", "aider"])
def test_a_preset_starts_its_agent_with_the_prompt_and_its_key(desk: Desk, name: str) -> None:
    desk.install(name, STAND_IN)
    prompt = "fix the 'login' bug; $(touch /tmp/x) \"now\"\nplease"
    done = desk(
        "run", "--source", ".", "--network", "none", "--agent", name, "--prompt", prompt,
        ANTHROPIC_API_KEY="k1" if name == "claude" else "", OPENAI_API_KEY="k1" if name != "claude" else "", OTHER="no",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"/.local/bin/{name}\n" in done.stdout
    assert f"<{prompt}>" in done.stdout
    assert "key=k1 other=\n" in done.stdout  # its own key, and nothing else of ours
    assert "+fix the 'login' bug" in desk.diff()
    assert os.listdir(desk.project) == []


def test_an_agent_reaches_only_its_own_hosts(desk: Desk) -> None:
    desk.install("claude", "env | grep -c '^https_proxy='; cat /proc/net/route | wc -l")
    done = desk("run", "--source", ".", "--agent", "claude", "--prompt", "x", "--format", "json")
    found = json.loads(done.stdout)
    assert found["run"]["network"] == "api.anthropic.com"
    assert "filtering proxy" in found["run"]["enforcement"]["network"]
    assert found["stdout"].startswith("1\n")


def test_more_words_a_command_of_ones_own_and_a_row_of_the_settings(desk: Desk) -> None:
    desk.install("mine", 'printf "<%s>" "$@"')
    program = f"{desk.user}/.local/bin/mine"
    tools = ("--tools", f"{desk.user}/.local/bin")
    done = desk("run", "--source", ".", "-q", *tools, "--agent", f"{program} --do {{prompt}}!", "--prompt", "a b")
    assert done.stdout == "<--do><a b!>"
    done = desk("run", "--source", ".", "-q", *tools, "--agent", program, "--prompt", "a b", "--", "--fast")
    assert done.stdout == "<--fast><a b>"
    row = {"command": ["mine", "-m", "{prompt}"], "tools": [f"{desk.user}/.local/bin"]}
    done = desk("run", "--source", ".", "-q", "--agent", "mine", "--prompt", "a b", AW_AGENTS__MINE=json.dumps(row))
    assert done.stdout == "<-m><a b>", done.stderr


def test_the_prompt_of_the_workspace_is_the_agents(desk: Desk) -> None:
    desk.install("claude", 'echo "$2"')
    desk("create", "--id", "t/a", "--prompt", "as was said")
    assert desk("run", "t/a", "-q", "--network", "none", "--agent", "claude").stdout == "as was said\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--agent", "claud", "--prompt", "x"], "there is no agent 'claud'"),
        (["--agent", "claud", "--prompt", "x"], "did you mean claude?"),
        (["--agent", "claude"], "the agent claude wants to be told what to do"),
        (["--agent", "x 'y"], "no command"),
        (["--agent", "claude", "--prompt", "x" * 130_000], "longer than the system passes on"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(desk: Desk, arguments: list[str], words: str) -> None:
    done = desk("run", "--source", ".", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert json.loads(desk("list", "--format", "json").stdout) == []


def test_an_agent_that_is_not_installed_is_a_command_that_is_not_there(desk: Desk) -> None:
    done = desk("run", "--source", ".", "--agent", "codex", "--prompt", "x")
    assert done.returncode == 125
    assert "no such file" in done.stderr


# -- from PyPI ---------------------------------------------------------------------------------------------------------


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    need(done.returncode == 0, f"PyPI: {done.stderr[-300:]}")


def make_venv(place: Path, *packages: str, alone: str = "") -> list[str]:
    """A virtual environment with these packages; gives the flags that show it, and its Python, to a run."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    if alone:
        pip("--python", f"{place}/bin/python", "install", "-q", "--no-deps", alone)
    pip("--python", f"{place}/bin/python", "install", "-q", *packages)
    python = [] if sys.base_prefix.startswith("/usr") else ["--tools", sys.base_prefix]
    return ["--tools", str(place), *python]


AGENT = """
import sys, yaml
from minisweagent import package_dir
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.test_models import DeterministicModel, make_output

def say(thought, command):
    return make_output(thought, [{"command": command}])

model = DeterministicModel(outputs=[
    say("what is there", "ls; cat calc.py; python3 check.py; true"),
    say("the sign is wrong", "sed -i 's/a - b/a + b/' calc.py"),
    say("does it hold", "python3 check.py && cat /etc/shadow; cat $HOME/../ada/secret; true"),
    say("submit", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff 2>/dev/null; cat calc.py"),
])
settings = yaml.safe_load((package_dir / "config" / "default.yaml").read_text())["agent"]
agent = DefaultAgent(model, LocalEnvironment(), **{**settings, "cost_limit": 0})
result = agent.run(sys.argv[1])
print(result["exit_status"])
for message in agent.messages:
    print(message["role"], message.get("content"))
"""


def test_mini_swe_agent_completes_a_task_in_a_workspace(desk: Desk, tmp_path: Path) -> None:
    """A real agent, with a scripted model because the sandbox has no network."""
    (desk.project / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (desk.project / "check.py").write_text("from calc import add\nassert add(2, 3) == 5\nprint('it adds')\n")
    (desk.user / "secret").write_text("not for agents\n")
    needed = ("pyyaml", "jinja2", "pydantic", "rich", "python-dotenv", "platformdirs", "requests")
    tools = make_venv(tmp_path / "swe", *needed, alone="mini-swe-agent")
    script = tmp_path / "agent.py"
    script.write_text(AGENT)
    agent = f"{tmp_path}/swe/bin/python {script} {{prompt}}"
    done = desk(
        "run", "--source", ".", *tools, "--ro", str(script), "--env", "MSWEA_SILENT_STARTUP=1", "--timeout", "120",
        "--agent", agent, "--prompt", "add() must add",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Submitted\n")
    assert "it adds" in done.stdout
    assert "add() must add" in done.stdout
    assert "not for agents" not in done.stdout
    assert "root:" not in done.stdout
    diff = desk.diff()
    assert "-    return a - b" in diff
    assert "+    return a + b" in diff
    assert "a - b" in (desk.project / "calc.py").read_text()  # until it is applied
    workspace = json.loads(desk("list", "--format", "json").stdout)[-1]["workspace_id"]
    assert desk("apply", workspace).returncode == 0
    assert "a + b" in (desk.project / "calc.py").read_text()


def test_the_test_suite_of_a_real_project_passes_in_a_workspace(desk: Desk, tmp_path: Path) -> None:
    """toolz, whose wheel carries its tests; some of them start pools of processes."""
    tools = make_venv(tmp_path / "venv", "pytest")
    pip("download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(tmp_path / "wheel"), "toolz")
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(desk.project)
    done = desk("run", "--source", ".", *tools, "--", "python", "-m", "pytest", "-q", "toolz")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert not (desk.project / ".pytest_cache").exists()

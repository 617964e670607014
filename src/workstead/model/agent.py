"""Start commands of known agents: the default table, extended by the settings' section `agents`."""

from __future__ import annotations

from workstead.errors import Invalid
from workstead.model.value import Value

PROMPT = "{prompt}"


class Agent(Value):
    """The start command of an agent, the variables and directories it needs, and its default network access."""

    command: list[str]  # `{prompt}` in a word is replaced by the prompt; without it, the prompt is the last word
    environment: list[str] = []  # variables passed on from the environment of the process that starts the run, if set
    tools: list[str] = []  # directories mounted read-only; their bin/ is on PATH
    read_only: list[str] = []
    read_write: list[str] = []
    network: str = "none"  # default, unless the run sets another


_TOOLS = ["~/.local/bin", "~/.local/share/claude", "~/.local/share/uv", "~/.local/share/pipx", "~/.volta"]
_NODE = ["~/.nvm", "~/.npm-global", "~/.bun"]

AGENTS: dict[str, Agent] = {
    "claude": Agent(
        command=["claude", "-p", PROMPT, "--dangerously-skip-permissions"],
        environment=[
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "ANTHROPIC_BASE_URL",
            "ANTHROPIC_MODEL",
            "CLAUDE_CODE_OAUTH_TOKEN",
        ],
        tools=[*_TOOLS, *_NODE],
        network="api.anthropic.com",
    ),
    "codex": Agent(
        command=["codex", "exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check", PROMPT],
        environment=["OPENAI_API_KEY", "OPENAI_BASE_URL", "CODEX_API_KEY"],
        tools=[*_TOOLS, *_NODE],
        network="api.openai.com",
    ),
    "aider": Agent(
        command=["aider", "--yes-always", "--no-check-update", "--no-analytics", "--message", PROMPT],
        environment=["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_API_BASE", "AIDER_MODEL"],
        tools=_TOOLS,
        network="api.anthropic.com,api.openai.com",
    ),
}


def find_agent(table: dict[str, Agent], name: str) -> Agent:
    """Return the agent of this name; a name with a space, a slash or `{prompt}` is a command line of the caller."""
    if name in table:
        return table[name]
    if any(mark in name for mark in (" ", "/", PROMPT)):
        import shlex

        try:
            words = shlex.split(name)
        except ValueError as error:
            raise Invalid(f"the agent {name!r} is no command: {error}") from None
        if words:
            return Agent(command=words)
    from difflib import get_close_matches

    near = get_close_matches(name, table, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    known = ", ".join(sorted(table))
    raise Invalid(
        f"there is no agent {name!r}",
        hint=f"{meant}known are {known}; a command of your own is written 'CMD {PROMPT}', or after --",
    )


def command_of(agent: Agent, name: str, prompt: str | None, more: list[str]) -> list[str]:
    """Return the command line to start the agent; raise `Invalid` if it needs a prompt and there is none."""
    if any(PROMPT in word for word in agent.command):
        if not prompt:
            raise Invalid(f"the agent {name} wants to be told what to do", hint="--prompt 'fix the login bug'")
        return [word.replace(PROMPT, prompt) for word in agent.command] + more
    return [*agent.command, *more, *([prompt] if prompt else [])]

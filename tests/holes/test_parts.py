"""A link, a file or nothing in place of `work`, `output` or `tmp` leads no verb of the host out of the workspace.

The agent owns the top of its workspace. In a sandbox the three directories are mount points, which cannot be renamed or
removed. Without one, and for any process of the user, they can be replaced, so every verb opens them by descriptor.
"""

from __future__ import annotations

import errno
import os
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from people import Person

SECRET = "the-owner's-token-9f2c"
PARTS = ("work", "output", "tmp")
KINDS = ("empty", "overlay")

# What an agent can try to get another directory under the name of a part; prints the parts that it replaced.
REPLACE = """
import ctypes, os, sys
top, secrets = sys.argv[1:]
os.chdir(top)
libc = ctypes.CDLL(None, use_errno=True)
replaced = []
for part in ("work", "output", "tmp"):
    os.makedirs("other", exist_ok=True)
    for attack in (
        lambda: os.rmdir(part),
        lambda: os.rename(part, f".{part}"),
        lambda: os.rename("other", part),
        lambda: libc.renameat2(-100, part.encode(), -100, b"other", 2) and os.stat("nothing"),
    ):
        try:
            attack()
        except OSError:
            continue
        replaced.append(part)
        if not os.path.lexists(part):
            os.symlink(secrets, part)
        break
print("replaced:", *replaced)
"""
BESIDE = "echo x > ../beside && mkdir ../d && mv ../beside ../d/x && rm -r ../d && ls -A .. | tr '\\n' ' '"


@pytest.fixture
def secrets(person: Person) -> Path:
    """A directory that only the person may read."""
    folder = person.folder("secrets", {"key": f"{SECRET}\n"})
    folder.chmod(0o700)
    (folder / "key").chmod(0o600)
    return folder


def make_workspace(person: Person, name: str, kind: str) -> Path:
    """A workspace with a file of its own in `work` and in `output`; where it stands."""
    source = person.folder("project", {"f": "from the project\n"})
    person.aw_ok("create", name, *(("--source", f"overlay:{source}") if kind == "overlay" else ()))
    person.aw_ok("put", name, "work/mine", feed="mine\n")
    person.aw_ok("put", name, "output/result", feed="result\n")
    return Path(person.aw_ok("path", name).strip())


def replace(person: Person, place: Path, part: str, secrets: Path) -> bool:
    """Put a link in place of a part, as a process of the host; False if the kernel does not let even root."""
    try:
        os.rename(place / part, place / f".{part}")
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    os.symlink(secrets, place / part)
    os.chown(place / part, person.uid, person.uid, follow_symlinks=False)
    return True


def assert_no_secret(person: Person, said: str) -> None:
    assert SECRET not in said
    found = person.do("grep", "-rl", "--devices=skip", SECRET, str(person.home)).stdout
    assert not found, found


@pytest.mark.parametrize("kind", KINDS)
def test_no_process_in_a_sandbox_can_replace_a_part(person: Person, secrets: Path, kind: str) -> None:
    plain = person.folder("plain", {f"{part}/f": "" for part in PARTS})
    done = person.do("/usr/bin/python3", "-c", REPLACE, str(plain), str(secrets))
    assert done.stdout == "replaced: work output tmp\n"  # where nothing is mounted
    make_workspace(person, "t/a", kind)
    said = person.aw_ok("run", "t/a", "--", "/usr/bin/python3", "-c", REPLACE, "/mnt/workspace", str(secrets))
    assert said == "replaced:\n"
    person.aw_ok("fork", "t/a", "--as", "t/b")
    for name in ("t/a", "t/b"):
        read = person.aw("run", name, "--", "sh", "-c", "cat ../output/key ../work/key ../tmp/key").stdout
        assert_no_secret(person, read)
        assert person.aw_ok("run", name, "--", "cat", "../output/result") == "result\n"
    # Files beside the parts are the agent's as before.
    assert person.aw_ok("run", "t/b", "--", "sh", "-c", BESIDE) == ".aw output tmp work "


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", PARTS)
def test_no_verb_follows_a_link_in_place_of_a_part(person: Person, secrets: Path, kind: str, part: str) -> None:
    make_workspace(person, "t/other", kind)
    place = make_workspace(person, "t/a", kind)
    if not replace(person, place, part, secrets):
        return  # root's view is a mount point for every process of the machine
    assert SECRET in person.sh(f"cat {place}/{part}/key")  # by its path, everybody follows it
    said = []
    for words in (
        ("snapshot", "t/a"),
        ("diff", "t/a"),
        ("fork", "t/a", "--as", "t/fork"),
        ("template", "add", "made", "--from", "t/a"),
        ("run", "t/a", "--", "sh", "-c", "cat ../*/key"),
        ("run", "t/a", "--sandbox", "none", "--", "true"),
        ("archive", "t/a"),
        ("tree", "t/a"),
        ("tree", "t/a", part),
        ("ls", "t/a", part),
        ("cat", "t/a", f"{part}/key"),
        ("find", "t/a", "*key*"),
        ("grep", "t/a", "token", part),
        ("put", "t/a", f"{part}/planted"),
        ("rm", "t/a", f"{part}/key"),
        ("mv", "t/a", f"{part}/key", "stolen"),
    ):
        done = person.aw("--format", "json", *words, feed="x")
        assert_no_secret(person, done.stdout + done.stderr)
        if '"part_replaced"' in done.stdout + done.stderr:
            said.append(words[0])
    assert {"work": "template", "output": "fork", "tmp": "run"}[part] in said
    assert "run" in said
    for words in (("list", "--changes"), ("show", "t/a"), ("usage",), ("sweep",), ("sweep", "--dry-run"), ("doctor",)):
        assert_no_secret(person, person.aw_ok(*words))
    person.aw_ok("run", "t/other", "--", "true")  # the others go on
    assert sorted(os.listdir(secrets)) == ["key"]
    assert f"t/a: {part} was a symbolic link" in person.aw_ok("repair") or part == "output"
    person.aw_ok("restore", "t/a", "base")
    assert person.aw("run", "t/a", "--", "sh", "-c", "cat ../*/key").stdout == ""
    person.aw_ok("destroy", "t/a", "--force")
    person.aw_ok("undo")
    person.aw_ok("destroy", "t/a", "--force")
    person.aw_ok("trash", "empty")
    assert (secrets / "key").read_text() == f"{SECRET}\n"


def test_a_link_in_place_of_the_metadata_is_neither_written_nor_read(person: Person) -> None:
    place = make_workspace(person, "t/a", "empty")
    theirs = person.folder("theirs", {"context.json": f'{{"token": "{SECRET}"}}', "run.json": "{}"})
    os.rename(place / ".aw", place / ".was")
    os.symlink(theirs, place / ".aw")
    assert SECRET in person.sh(f"cat {place}/.aw/context.json")
    done = person.aw("run", "t/a", "--", "true")
    assert done.returncode == 4
    assert "the directory .aw of this workspace was replaced by a symbolic link" in done.stderr
    archive = person.aw_ok("archive", "t/a").strip()
    assert SECRET not in person.sh(f"tar --zstd -xOf {archive}")
    assert (theirs / "run.json").read_text() == "{}"
    assert sorted(os.listdir(theirs)) == ["context.json", "run.json"]
    person.aw_ok("fork", "t/a", "--as", "t/b")
    person.aw_ok("run", "t/b", "--", "true")


@pytest.mark.parametrize("left", ["nothing", "a file", "a pipe", "a link to nowhere"])
def test_after_work_was_moved_away_every_file_is_in_the_states(person: Person, left: str) -> None:
    place = make_workspace(person, "t/a", "empty")
    then = {"nothing": "true", "a file": "touch", "a pipe": "mkfifo", "a link to nowhere": "ln -s nowhere"}[left]
    person.aw_ok("run", "t/a", "--", "true")
    person.sh(f"cd {place}; mv work .x; {then} work")
    for words in (("snapshot", "t/a"), ("fork", "t/a"), ("diff", "t/a"), ("run", "t/a", "--", "true")):
        done = person.aw(*words)
        assert done.returncode == 4
        assert "the directory work of this workspace was" in done.stderr
        assert "aw repair" in done.stderr
    person.aw_ok("list", "--changes")
    person.aw_ok("sweep")
    kept = [each["id"] for each in person.aw_json("snapshots", "t/a")]
    person.aw_ok("restore", "t/a", kept[-1])
    assert person.aw_ok("run", "t/a", "--", "cat", "mine", "../output/result") == "mine\nresult\n"
    assert (place / ".x" / "mine").read_text() == "mine\n"  # and nothing of the agent's was lost
    assert len(list(place.glob("work.replaced-*"))) == (left != "nothing")


def test_a_layer_that_is_a_link_is_not_mounted_and_ends_no_sweep(person: Person, secrets: Path) -> None:
    make_workspace(person, "t/a", "empty")
    person.aw_ok("fork", "t/a", "--as", "t/b")  # from now on both stand on a frozen layer
    (layer,) = (person.home / "workspaces" / ".carrel" / "frozen").iterdir()
    person.aw_ok("destroy", "t/a", "--force")
    person.aw_ok("destroy", "t/b", "--force")
    person.sh(f"mv {layer} {layer}.aside && ln -s {secrets} {layer}")  # as a home of an older version may have it
    done = person.aw("undo")
    assert_no_secret(person, done.stdout + done.stderr)
    assert "is a symbolic link" in done.stderr
    stray = layer.with_name("stray")
    person.sh(f"ln -s {secrets} {stray}")
    person.aw_ok("sweep")
    assert not os.path.lexists(stray)
    person.aw_ok("list", "--changes")
    assert (secrets / "key").exists()


def test_an_agent_alone_cannot_replace_a_part_through_mcp(person: Person, secrets: Path) -> None:
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters

    from situations import in_a_loop

    person.packages.append(Path(sysconfig.get_path("purelib")))
    server = person.command(person.aw_words("mcp"))
    source = person.folder("project", {"f": "from the project\n"})

    async def main() -> None:
        parameters = StdioServerParameters(command=server[0], args=server[1:], env=person.environment(), cwd=source)
        async with Client(parameters) as client:

            async def call(name: str, **arguments: Any) -> Any:
                answer = await client.call_tool(name, arguments)
                assert not answer.is_error, answer.content
                return answer.structured_content

            config = {"policy": "trusting"}
            await call("create_workspace", source=f"overlay:{source}", id="m/a", config=config)
            command = f"rmdir ../output && ln -s {secrets} ../output; mv ../output ../o; ls -l ../output"
            await call("run_command", command=command)
            (fork,) = (await call("fork_workspace", count=1))["workspaces"]
            read = await call("run_command", command="cat ../output/key; ls -d ../output", workspace=fork)
            assert read["stdout"] == "../output\n"

    in_a_loop(main())
    assert_no_secret(person, "")

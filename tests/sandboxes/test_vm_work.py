"""Honest work in a machine: files shared with the host, tools, and a network that is a list of names."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator

import pytest
import test_execute
from attempts import IN_ONE_GO
from scene import Attendant, Scene, a_host, need_guest
from test_network import (  # the contract of any sandbox, here with `host` as below
    Web,
    ask,
    test_a_name_in_the_list_is_reached_by_a_tunnel,
    test_a_name_in_the_list_is_reached_by_plain_http,
    test_a_secret_is_added_outside_and_never_seen_inside,
    test_an_empty_list_lets_nothing_through,
    test_bodies_arrive_whole,
    test_the_environment_names_the_proxy,
    test_the_proxy_dies_with_the_run,
    test_there_is_no_way_around_the_proxy,
    web,
)

from needs import need, need_program
from waiting import wait_until
from workstead.model.enforcement import Limits
from workstead.sandboxes import Mount
from workstead.system.process.proxy import Rule

__all__ = [
    "test_a_name_in_the_list_is_reached_by_a_tunnel",
    "test_a_name_in_the_list_is_reached_by_plain_http",
    "test_a_secret_is_added_outside_and_never_seen_inside",
    "test_an_empty_list_lets_nothing_through",
    "test_bodies_arrive_whole",
    "test_the_environment_names_the_proxy",
    "test_the_proxy_dies_with_the_run",
    "test_there_is_no_way_around_the_proxy",
    "web",
]
PLAIN = Limits(wall_seconds=55, grace_seconds=0.5)


@pytest.fixture(scope="module")
def host() -> Iterator[Scene]:
    """Started by whoever runs the tests: the walls of both users are looked at in test_vm.py."""
    with a_host("root" if os.geteuid() == 0 else "ordinary", "vm/tcg") as scene:
        need_guest(scene)
        yield scene


def check(host: Scene, script: str, **options: object) -> str:
    outcome = host.inside(script, **{"limits": PLAIN, **options})  # type: ignore[arg-type]
    assert outcome.result.state == "completed", (outcome.result, outcome.text[-2000:])
    return outcome.stdout.decode()


# -- tools -------------------------------------------------------------------------------------------------------------


def test_the_usual_places(host: Scene) -> None:
    out = check(
        host,
        "pwd; id -un; echo $HOME; cd && touch x; echo t > /tmp/t; echo v > /var/tmp/v; cat /tmp/v; "
        "echo o > /dev/stdout; echo hi > /dev/null; getent hosts localhost | cut -c1-3; hostname; "
        "ls /mnt/workspace -A | head -1; echo $CHOKIDAR_USEPOLLING",
    )
    assert out == "/mnt/workspace/work\nagent\n/home/agent\nv\no\n::1\nworkstead\n.aw\n1\n"


def test_a_guest_cannot_rename_a_part_of_its_workspace(host: Scene) -> None:
    script = "cd ..; mv work .x 2> /dev/null && mv .x work && echo moved; echo x > beside && rm beside && echo beside"
    assert check(host, script) == "moved\nbeside\n"
    assert check(host, script, parts=("work",)) == "beside\n"


def test_a_limit_on_open_files_is_not_the_guests(host: Scene) -> None:
    check(host, "true", limits=PLAIN.replace(open_files=1 << 20))


def test_a_commit_and_its_status_on_both_sides(host: Scene) -> None:
    need_program("git")
    script = (
        "git init -q r && cd r && echo x > f && git add f && "
        "git -c user.name=a -c user.email=a@b commit -qm first && git log --format=%s && git fsck && git status --short"
    )
    assert check(host, script) == "first\n"
    before = os.stat(f"{host.work}/r/.git/index").st_mtime_ns
    check(host, "cd r && git status --short")
    assert os.stat(f"{host.work}/r/.git/index").st_mtime_ns == before  # other inode numbers are no changes
    host.reset()


def test_a_database_with_a_write_ahead_log_and_mapped_files(host: Scene) -> None:
    body = (
        "import mmap, os, sqlite3\n"
        "c = sqlite3.connect('d.db'); print(c.execute('pragma journal_mode=wal').fetchone()[0])\n"
        "c.execute('create table t(x)'); c.executemany('insert into t values(?)', [(i,) for i in range(100)])\n"
        "c.commit(); print(sqlite3.connect('d.db').execute('select sum(x) from t').fetchone()[0]); c.close()\n"
        "f = os.open('m', os.O_RDWR | os.O_CREAT); os.ftruncate(f, 8192)\n"
        "m = mmap.mmap(f, 8192); m[4096:4100] = b'seen'; m.flush()\n"
        "print(os.pread(f, 4, 4096))\n"
    )
    assert check(host, f"/usr/bin/python3 - <<'PY'\n{body}PY") == "wal\n4950\nb'seen'\n"
    with open(f"{host.work}/m", "rb") as file:
        assert file.read()[4096:4100] == b"seen"
    assert subprocess.run(["/usr/bin/python3", "-c", "import sqlite3"], check=False).returncode == 0
    host.reset()


def test_a_virtual_environment(host: Scene) -> None:
    script = (
        "/usr/bin/python3 -m venv --without-pip v && echo 'def greet(): return 42' > "
        "$(echo v/lib/python3*/site-packages)/greeting.py && v/bin/python -c 'import greeting; print(greeting.greet())'"
    )
    assert check(host, script) == "42\n"
    host.reset()


def test_a_node_script(host: Scene) -> None:
    need(os.path.exists("/usr/bin/node"), "node in /usr/bin")
    assert check(host, "echo 'console.log(6*7)' > a.js && /usr/bin/node a.js") == "42\n"
    host.reset()


def test_links_modes_and_odd_names(host: Scene) -> None:
    script = (
        "echo x > 'ö\n name' && ln -s nowhere l; echo '#!/bin/sh\necho ran' > s && chmod 755 s && ./s; "
        "mkdir -p d/e && mv d g && rm -r g; stat -c %a s; readlink l"
    )
    assert check(host, script) == "ran\n755\nnowhere\n"
    assert os.readlink(f"{host.work}/l") == "nowhere"
    assert os.stat(f"{host.work}/s").st_uid == host.agent
    assert "ö\n name" in os.listdir(host.work)
    host.reset()


def test_mounts_and_tools_appear_as_asked(host: Scene) -> None:
    for name in ("tool", "shared", "seen"):
        path = os.path.join(host.base, name)
        os.makedirs(path, exist_ok=True)
        os.chown(path, host.agent, -1)
        with open(os.path.join(path, "hello"), "w") as file:
            file.write("#!/bin/sh\necho tool runs\n")
        os.chmod(os.path.join(path, "hello"), 0o755)
    tool, shared, seen = (os.path.join(host.base, name) for name in ("tool", "shared", "seen"))
    out = check(
        host,
        f"hello; touch {tool}/x || echo read-only; touch /seen/x || echo read-only; touch /shared/new && echo writable",
        tools=(tool,),
        mounts=(
            Mount(source=shared, target="/shared", writable=True),
            Mount(source=seen, target="/seen"),
            Mount(source=f"{seen}/hello", target="/opt/one/file"),
        ),
        environment={"PATH": f"{tool}:/usr/bin:/bin"},
    )
    assert out == "tool runs\nread-only\nread-only\nwritable\n"
    assert os.path.exists(os.path.join(shared, "new"))


def test_what_can_be_written_cannot_be_executed_where_that_is_denied(host: Scene) -> None:
    """The attempts of the other sandbox; there each has its twin, and here once more as a whole."""
    test_execute.prepare(host)
    mounts = tuple(
        Mount(source=f"{host.base}/{name}", target=f"/mnt/shares/{name}", writable=name == "rw", executable=False)
        for name in ("ro", "rw")
    )
    with open(f"{host.work}/go", "w") as file:
        file.write(IN_ONE_GO)
    for executable in (True, False):
        with open(f"{host.work}/attempts", "w") as file:
            json.dump(list(test_execute.ATTEMPTS.items()), file)
        os.chown(f"{host.work}/attempts", host.agent, -1)
        shares = tuple(mount.replace(executable=executable) for mount in mounts)
        said = check(host, "python3 -I go attempts", executable=executable, mounts=shares)
        succeeded = {name for name, text in json.loads(said).items() if "EXECUTED" in text}
        assert succeeded == (set(test_execute.ATTEMPTS) if executable else set())
    host.reset()
    for name in ("ro", "rw"):
        shutil.rmtree(f"{host.base}/{name}")


# -- both sides --------------------------------------------------------------------------------------------------------


def test_both_sides_see_each_others_edits(host: Scene) -> None:
    seen: list[str] = []

    def other_side() -> None:
        _wait_for(f"{host.work}/guest")
        with open(f"{host.work}/guest") as file:
            seen.append(file.read())
        for text in ("one\n", "two\n"):
            with open(f"{host.work}/host.new", "w") as file:
                file.write(text)
            os.rename(f"{host.work}/host.new", f"{host.work}/host")
            _wait_for(f"{host.work}/saw-{text.strip()}")

    thread = threading.Thread(target=other_side)
    thread.start()
    script = (
        "echo hello > guest.new; mv guest.new guest; for w in one two; do until grep -qs $w host; do sleep 0.05; done; "
        "cat host; touch saw-$w; done"
    )
    assert check(host, script) == "one\ntwo\n"
    thread.join()
    assert seen == ["hello\n"]
    host.reset()


def test_the_hosts_watcher_sees_what_the_guest_writes(host: Scene) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    os.makedirs(f"{host.work}/deep/er")
    for path in (f"{host.work}/deep", f"{host.work}/deep/er"):
        os.chown(path, host.agent, -1)
    watch = libc.inotify_init1(0o4000)
    assert libc.inotify_add_watch(watch, os.fsencode(f"{host.work}/deep/er"), 0x3C6) >= 0
    check(host, "echo x > deep/er/new; echo y >> deep/er/new; rm deep/er/new")
    events = os.read(watch, 65536)
    os.close(watch)
    assert events.count(b"new\0") >= 4
    host.reset()


WAITER = """
import ctypes, os, select, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
queue = libc.inotify_init1(0o4000)
folders = {libc.inotify_add_watch(queue, path.encode(), 0x3C6): path for path in sys.argv[2:]}  # as node asks for
assert min(folders) > 0
open(sys.argv[1], "w").close()
while select.select([queue], [], [], 30)[0]:
    data = os.read(queue, 65536)
    while data:
        number, mask, _, size = struct.unpack_from("iIII", data)
        name = data[16 : 16 + size].rstrip(b"\\0").decode()
        print(folders[number], name, hex(mask & 0xfff), flush=True)
        data = data[16 + size :]
        if name == "stop":
            sys.exit()
print("nothing came")
"""


def test_who_waits_for_notices_in_the_guest_hears_what_the_host_changes(host: Scene) -> None:
    """On the top, below it and for one file; times of the files stay as the host left them."""
    waiter(host)

    def edit(attendant: Attendant) -> None:
        _wait_for(f"{host.work}/ready")
        for name, text in (("deep/er/new", "one"), ("deep/er/old", "two"), ("top", "three")):

            def replace(name: str = name, text: str = text) -> bool:
                put(host, f"{name}.part", text)
                os.utime(f"{host.work}/{name}.part", ns=(10**18, 10**18))
                os.rename(f"{host.work}/{name}.part", f"{host.work}/{name}")
                return attendant.has_said(f" {os.path.basename(name)} ".encode(), within=2)

            wait_until(replace)  # the host looks from a moment after the guest does
        os.unlink(f"{host.work}/deep/er/old")
        attendant.wait_for(b"deep/er  0x4")
        put(host, "deep/stop", "")

    command = ["/usr/bin/python3", "waiter", "ready", ".", "deep/er", "/mnt/workspace/work/deep"]
    outcome = host.inside(command, attended=edit, limits=Limits(wall_seconds=90), timeout=100)
    assert outcome.result.state == "completed", outcome.text
    assert "deep/er new 0x4\n" in outcome.text
    assert ". top 0x4\n" in outcome.text
    assert os.stat(f"{host.work}/deep/er/new").st_mtime_ns == os.stat(f"{host.work}/top").st_mtime_ns == 10**18
    host.reset()


def test_who_waits_for_notices_in_the_guest_hears_another_command_once(host: Scene) -> None:
    """And the host does not send back what was done in there."""
    waiter(host)

    def act(_: Attendant) -> None:
        _wait_for(f"{host.work}/ready")
        check(host, "echo x > deep/er/made; sleep 2; echo x > deep/er/stop")

    command = ["/usr/bin/python3", "waiter", "ready", "deep/er"]
    outcome = host.inside(command, attended=act, limits=Limits(wall_seconds=90), timeout=100)
    assert outcome.text.splitlines()[:2] == ["deep/er made 0x100", "deep/er made 0x2"], outcome.text
    assert "made 0x4" not in outcome.text
    host.reset()


def waiter(host: Scene) -> None:
    os.makedirs(f"{host.work}/deep/er", exist_ok=True)
    for path in (f"{host.work}/deep", f"{host.work}/deep/er"):
        os.chown(path, host.agent, -1)
    put(host, "waiter", WAITER)
    put(host, "deep/er/old", "one")


def put(host: Scene, name: str, text: str) -> None:
    with open(f"{host.work}/{name}", "w") as file:
        file.write(text)
    os.chown(f"{host.work}/{name}", host.agent, -1)


def _wait_for(path: str) -> None:
    wait_until(lambda: os.path.exists(path))


# -- the network -------------------------------------------------------------------------------------------------------


def test_what_is_not_in_the_list_is_refused_and_told(host: Scene, web: Web) -> None:
    lines = ("CONNECT elsewhere.test:443", "CONNECT 127.0.0.1:1", "GET http://a@localhost:1/")
    body = "\n".join(f"ask(b'{line} HTTP/1.1\\r\\n\\r\\n')" for line in lines)
    outcome = ask(host, body, (Rule(host="localhost", ports=(web.server_port,)),))
    assert outcome.text.count("403 Forbidden") == 3, outcome.text
    assert len([event for event in outcome.events if event[0] == "denied"]) == 3
    assert web.seen == []


def test_large_bodies_arrive_whole_both_ways(host: Scene, web: Web) -> None:
    """More than a window, so that each side has to wait for the other."""
    body = (
        "import urllib.request, hashlib, os\n"
        "d = os.urandom(1500000)\n"
        f"r = urllib.request.Request('http://localhost:{web.server_port}/p', data=d)\n"
        "r.set_proxy('127.0.0.1:3128', 'http')\n"
        "print(urllib.request.urlopen(r).read() == d[::-1])\n"
    )
    rule = Rule(host="localhost", ports=(web.server_port,), private=True)
    outcome = host.inside(["/usr/bin/python3", "-c", body], network="proxy", rules=(rule,))
    assert outcome.stdout == b"True\n", outcome.text


def test_each_command_has_a_network_of_its_own(host: Scene, web: Web) -> None:
    """One may reach a name, and another in the same machine at the same time may not."""
    rule = Rule(host="localhost", ports=(web.server_port,), private=True)
    line = f"GET http://localhost:{web.server_port}/x HTTP/1.1\\r\\n\\r\\n"
    outcomes = {}

    def allowed() -> None:
        outcomes["allowed"] = ask(host, f"import time\nask(b'{line}')\ntime.sleep(3)\nask(b'{line}')", (rule,))

    thread = threading.Thread(target=allowed)
    thread.start()
    refused = host.inside("sleep 1; timeout 5 bash -c 'echo > /dev/tcp/127.0.0.1/3128' && echo ESCAPED")
    thread.join()
    assert "ESCAPED" not in refused.text
    assert outcomes["allowed"].text.count("path=/x") == 2


def test_the_hosts_network_is_refused(host: Scene) -> None:
    with pytest.raises(AssertionError, match="cannot use the host's network"):
        host.inside("true", network="host")

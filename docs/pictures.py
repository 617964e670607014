"""Take the pictures of the README: a scene in a home of its own, a real server, a real browser.

.venv/bin/python docs/pictures.py             two pictures into docs/pictures/
.venv/bin/python docs/pictures.py --all DIR   every place, on a wide screen and a phone, light and dark, into DIR
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

import workstead
from workstead.errors import ApprovalRequired
from workstead.local import Local

PICTURES = Path(__file__).parent / "pictures"
WIDE, PHONE = {"width": 1360, "height": 860}, {"width": 390, "height": 800}
LOGIN = '''"""Who is it?"""

from shop.store import users


def login(name: str, password: str) -> str:
    user = users.get(name)
    if user is None:
        return "unknown"
    if user.password == password:
        return "welcome"
    return "wrong"
'''
FIXED = LOGIN.replace("users.get(name)", "users.get(name.strip().lower())").replace(
    "user.password == password", "user.knows(password)"
)
CART = "def total(items):\n    return sum(item.price for item in items)\n"


def project(folder: Path) -> None:
    """A small shop."""
    files = {
        "README.md": "# Shop\n\nA small shop.\n",
        "shop/login.py": LOGIN,
        "shop/cart.py": CART,
        "shop/store.py": "users = {}\n",
        "tests/test_cart.py": "from shop.cart import total\n\n\ndef test_nothing():\n    assert total([]) == 0\n",
        "migrations/0001_users.sql": "create table users (name text primary key);\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def furnish(workspaces: Local, folder: Path) -> list[str]:
    """Some desks with agents at work. Gives the runs that go on."""
    project(folder)
    workspaces.add_template("shop", folder=str(folder))
    for desk in ("fix-login/a1", "tidy/a1", "docs/a1"):
        workspaces.create("template:shop", id=desk, config={"policy": "careful", "max_size_mb": 512})
    workspaces.race(
        "template:shop",
        ["sh", "-c", "seq {n} | sed 's/^/# round /' >> shop/cart.py; sleep 0.{n}; test {n} != 3"],
        count=3,
        check="! grep -q 'round 2' shop/cart.py",
        task="faster-cart",
    )
    workspaces.write_file("fix-login/a1", "work/shop/login.py", FIXED)
    workspaces.snapshot("fix-login/a1", label="names are cleaned")
    workspaces.wait(
        workspaces.run(
            "fix-login/a1", ["sh", "-c", "for part in login cart store; do echo $part is fine; done; echo all good"]
        ).id
    )
    workspaces.wait(workspaces.run("docs/a1", ["sh", "-c", "echo 'Run make, then open it.' >> README.md"]).id)
    workspaces.pin("docs/a1", reason="the manual")
    agent = workspaces.acting_as("agent", agent_of="tidy/a1")
    with suppress(ApprovalRequired):
        agent.delete_file("tidy/a1", "work/migrations/0001_users.sql")
    with suppress(ApprovalRequired):
        agent.write_file("tidy/a1", "work/shop/cart.py", CART.replace("item.price", "item.price * item.count"))
    lively = "for n in 1 2 3 4 5 6 7 8; do echo tests/test_cart.py::test_$n PASSED; done; echo 8 passed; sleep 600"
    testing = "echo tests/test_login.py::test_a_name_with_spaces PASSED; sleep 600"
    return [
        workspaces.run("tidy/a1", ["sh", "-c", lively]).id,
        workspaces.run("fix-login/a1", ["sh", "-c", testing]).id,
    ]


@contextmanager
def serving(home: str) -> Iterator[dict[str, str]]:
    """`aw serve` for as long as it is needed: what it says about itself."""
    command = [sys.executable, "-I", "-c", "from workstead.cli import command; command()"]
    options = ["serve", "--home", home, "--port", "0", "--format", "json"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def enter(browser: Browser, said: dict[str, str], size: dict[str, int], scheme: str = "light") -> Page:
    """A tab that has come through a fresh link."""
    made = subprocess.run(
        [sys.executable, "-I", "-c", "from workstead.cli import command; command()", "page", "--home", said["home"]],
        capture_output=True,
        text=True,
        check=True,
    )
    link = next(word for word in made.stdout.split() if word.startswith("http"))
    tab = browser.new_context(viewport=size, color_scheme=scheme).new_page()  # type: ignore[arg-type]
    tab.goto(link)
    tab.get_by_role("link", name="fix-login/a1").wait_for()
    tab.wait_for_timeout(3000)  # until everything is measured and drawn
    return tab


PLACES = {
    "overview": "/",
    "desk": "/desk/fix-login/a1",
    "files": "/desk/fix-login/a1?tab=Files",
    "runs": "/desk/tidy/a1?tab=Runs",
    "timeline": "/desk/fix-login/a1?tab=Timeline",
    "walls": "/desk/fix-login/a1?tab=Walls",
    "compare": "/compare/faster-cart",
    "approvals": "/approvals",
    "machine": "/machine",
    "nowhere": "/desk/no/body",
}


def take(tab: Page, url: str, place: str, path: Path) -> None:
    """One picture."""
    tab.goto(url + place)
    tab.wait_for_timeout(2500)
    path.parent.mkdir(parents=True, exist_ok=True)
    tab.screenshot(path=str(path))


def main() -> None:
    """Take them."""
    scratch = Path(tempfile.mkdtemp(prefix="workstead-pictures-"))
    home = str(scratch / "home")
    everything = Path(sys.argv[2]) if sys.argv[1:2] == ["--all"] else None
    with workstead.open(home) as workspaces, sync_playwright() as playwright:
        going_on = furnish(workspaces, scratch / "shop")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with serving(home) as said:
            said["home"] = home
            if everything is None:
                tab = enter(browser, said, WIDE)
                for name in ("overview", "approvals"):
                    take(tab, said["url"], PLACES[name], PICTURES / f"{name}.png")
            for width, size in {"wide": WIDE, "phone": PHONE}.items() if everything else ():
                for scheme in ("light", "dark"):
                    tab = enter(browser, said, size, scheme)
                    for name, place in PLACES.items():
                        assert everything
                        take(tab, said["url"], place, everything / f"{name}-{width}-{scheme}.png")
        browser.close()
        for run_id in going_on:
            workspaces.stop(run_id)
        ids = [desk.id for desk in workspaces.list()]
        workspaces.destroy(*ids, force=True)  # what was mounted is let go
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()

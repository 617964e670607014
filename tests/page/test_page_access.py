"""Who gets in, and what an agent's text can do once it is shown."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from browsing import Server
from workstead.local import Local
from workstead.page.access import Access

EVIL = "<img src=x onerror=\"document.title='owned'\">"
NAMES = [
    "<script>document.title='owned'<!--.txt",
    EVIL.replace("/", "_"),
    "quote\"'`.txt",
    "emoji 🦊.txt",
    "right\u202eto-left.txt",
    "new\nline.txt",
]


def ask(server: Server, method: str, path: str, **headers: str) -> http.client.HTTPResponse:
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=20)
    connection.request(method, path, headers={"Host": address.netloc, **headers})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def get(server: Server, path: str, **headers: str) -> http.client.HTTPResponse:
    return ask(server, "GET", path, **headers)


def cookie_of(server: Server) -> tuple[str, str]:
    """The cookie, and the path that it is for."""
    entered = get(server, server.said["link"].removeprefix(server.url))
    assert entered.status == 200
    said = entered.headers["set-cookie"]
    assert "HttpOnly" in said
    assert "SameSite=Strict" in said
    return said.partition(";")[0], said.partition("Path=")[2].partition(";")[0]


def test_without_the_cookie_there_is_no_page(server: Server) -> None:
    for path in (
        "/",
        "/desk/a/b",
        "/approvals",
        "/_nicegui/anything",
        "/_nicegui_ws/socket.io/?EIO=4&transport=polling",
    ):
        assert get(server, path).status == 401, path
    assert get(server, "/", Cookie="aw-page-1=x").status == 401


def test_a_link_opens_once_and_its_cookie_is_for_this_origin(server: Server) -> None:
    cookie, root = cookie_of(server)
    assert get(server, server.said["link"].removeprefix(server.url)).status == 401
    assert get(server, f"{root}/", Cookie=cookie).status == 200
    assert get(server, f"{root}/", Cookie=cookie, Origin="http://evil.example").status == 403
    assert get(server, f"{root}/", Cookie=cookie, Host="evil.example").status == 421
    name, _, value = cookie.partition("=")
    ends, _, rest = value.partition(".")
    for forged in (f"{name}={int(ends) + 1}.{rest}", f"{name}={value[:-1]}", f"{name}=", name):
        assert get(server, f"{root}/", Cookie=forged).status == 401, forged
    assert get(server, "/api/workspaces", Cookie=cookie).status == 401, "the API takes no cookie"


def test_a_cookie_is_good_for_its_own_origin_and_owner_only() -> None:
    access = Access(lambda: "secret", "")
    root, said = access.admit("127.0.0.1:8757")
    cookie = said.partition(";")[0]
    assert access.find_root("127.0.0.1:8757", f"{root}/", cookie) == root
    other_port = cookie.replace("aw-page-8757", "aw-page-9999")
    assert access.find_root("127.0.0.1:9999", f"{root}/", other_port) is None
    assert Access(lambda: "changed", "").find_root("127.0.0.1:8757", f"{root}/", cookie) is None


def test_the_page_loads_nothing_from_elsewhere_and_says_so(server: Server) -> None:
    cookie, root = cookie_of(server)
    answer = get(server, f"{root}/", Cookie=cookie)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy.replace("https", "")


def test_a_new_link_is_for_the_owners_token(server: Server, workspaces: Local) -> None:
    workspaces.create(id="t/a")
    _, token = workspaces.create_token("t/a")
    for text, status in ((workspaces.owner_token(), 201), (token, 403)):
        assert ask(server, "POST", "/api/links", Authorization=f"Bearer {text}").status == status


@pytest.fixture
def hostile(workspaces: Local) -> Local:
    workspaces.create(id=f"{EVIL.replace('/', '_')}/a")
    desk = workspaces.create(id="evil/a")
    for name in NAMES:
        workspaces.write_file(desk.id, f"work/{name}", f"{EVIL}\n</script><script>document.title='owned'</script>\n")
    workspaces.wait(workspaces.run(desk.id, ["sh", "-c", f"echo '{EVIL}'; touch made"]).id)
    workspaces.snapshot(desk.id, label=EVIL)
    return workspaces


def test_text_of_agents_is_only_ever_text(page: Page, hostile: Local) -> None:
    page.get_by_role("link", name="evil/a", exact=True).click()
    page.get_by_role("heading", name="evil/a").wait_for()
    expect(page.locator("table.diff").first).to_contain_text("onerror")
    for tab in ("Files", "Runs", "Timeline", "Walls"):
        page.get_by_role("tab", name=tab).click()
        page.wait_for_timeout(500)
    page.get_by_role("tab", name="Files").click()
    for fragment in ("emoji", "quote", "<script>", "\\u202e", "\\nline"):
        page.get_by_role("gridcell").get_by_text(fragment).first.click()
        expect(page.locator(".cm-content")).to_contain_text("onerror")
    assert page.title() == "Workspace · Workstead"
    page.goto(page.url.partition("/desk")[0])
    page.get_by_role("link", name="onerror").wait_for()
    assert page.title() == "Workspaces · Workstead"


def test_without_escaping_that_text_would_run(browser: Browser) -> None:
    """The twin: the same bytes as markup do what they say."""
    tab = browser.new_page()
    tab.set_content(f"<title>x</title>{EVIL}")
    tab.wait_for_function("document.title === 'owned'")
    tab.close()

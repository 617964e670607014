"""Find out how this copy of Workstead was installed, and the command that adds an extra to it.

Hints use this, so that the printed remedy works as it is: the same installer, the same environment and the same source
(a wheel or a folder as long as the distribution is on no index).
"""

from __future__ import annotations

import os
import re
import shlex
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import Distribution

NAME = "workstead"
# In a checkout the extras come from locked lists, each of which includes the ones before it.
CHECKOUT_LISTS = {"": "run", "sandbox": "run", "postgres": "dev", "all": "dev"}  # every other extra: server


def install_command(extra: str = "") -> str:
    """Return the shell command that adds `extra` to this installation, or its own requirements if `extra` is empty."""
    checkout = find_checkout()
    if checkout:
        return _join("sh", os.path.join(checkout, "requirements", "install"), CHECKOUT_LISTS.get(extra, "server"))
    found = _distribution()
    source = _source(found)
    if _has("pipx_metadata.json"):
        if source is None:
            return _join("pipx", "inject", NAME, *_requirements(found, extra))
        return _join("pipx", "install", "--force", *_wanted(source, _kept_extras(found, extra)))
    if _has("uv-receipt.toml"):
        if source is None:
            return _join("uv", "pip", "install", "--python", sys.executable, *_requirements(found, extra))
        return _join("uv", "tool", "install", "--force", *_wanted(source, _kept_extras(found, extra)))
    wanted = _requirements(found, extra) if source is None else _wanted(source, [extra] if extra else [])
    return _join(*_pip(found), *wanted)


def rebuild_command() -> str:
    """Return the shell command that installs this copy again with its part in C compiled on this machine."""
    checkout = find_checkout()
    if checkout:
        return _join("sh", os.path.join(checkout, "requirements", "compile"))
    found = _distribution()
    source = _source(found)
    if source is None or (source and source[-1].endswith(".whl")):
        return f"a build from the sources: pip wheel . in the folder of {NAME}"
    wanted = _wanted(source, _kept_extras(found, ""))
    if _has("pipx_metadata.json"):
        return _join("pipx", "install", "--force", f"--pip-args=--force-reinstall --no-binary={NAME}", *wanted)
    if _has("uv-receipt.toml"):
        return _join("uv", "tool", "install", "--force", "--reinstall", "--no-binary-package", NAME, *wanted)
    again = (
        ["--reinstall", "--no-binary", NAME] if _pip(found)[0] == "uv" else ["--force-reinstall", "--no-binary", NAME]
    )
    return _join(*_pip(found), *again, *wanted)


def find_checkout() -> str:
    """Return the folder of the checkout whose own `.venv` runs this, or an empty string."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    own = os.path.realpath(sys.prefix) == os.path.realpath(os.path.join(root, ".venv"))
    return root if own and os.path.exists(os.path.join(root, "requirements", "install")) else ""


def name_of(requirement: str) -> str:
    """Return the name of the distribution in a requirement."""
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def _join(*words: str) -> str:
    return " ".join(map(shlex.quote, words))


def _has(marker: str) -> bool:
    """Return whether the tool that made this environment left its marker file there."""
    return os.path.exists(os.path.join(sys.prefix, marker))


def _distribution() -> Distribution | None:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution(NAME)
    except PackageNotFoundError:  # sources on PYTHONPATH
        return None


def _pip(found: Distribution | None) -> list[str]:
    """Return the installer command of an ordinary environment, with an option that names the environment."""
    installer = ((found.read_text("INSTALLER") or "") if found else "").strip()
    if installer == "uv":
        return ["uv", "pip", "install", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install"]


def _source(found: Distribution | None) -> tuple[str, ...] | None:
    """Return the source of the distribution: `()` is an index, else PEP 610's `(url,)` or `("--editable", path)`.

    None is a wheel or folder that is gone: naming the index instead could install another project of that name.
    """
    import json
    from urllib.parse import unquote, urlsplit

    text = found.read_text("direct_url.json") if found else None
    if not text:
        return ()
    direct = json.loads(text)
    url = str(direct["url"])
    if url.startswith("file:") and not os.path.exists(unquote(urlsplit(url).path)):
        return None
    if direct.get("dir_info", {}).get("editable"):
        return ("--editable", unquote(urlsplit(url).path))
    versions = direct.get("vcs_info")
    if versions:
        revision = versions.get("requested_revision") or versions["commit_id"]
        return (f"{versions['vcs']}+{url}@{revision}",)
    return (url,)


def _wanted(source: tuple[str, ...], extras: list[str]) -> list[str]:
    """Return the arguments after `install`: the distribution with these extras, from its source."""
    suffix = f"[{','.join(extras)}]" if extras else ""
    if not source:
        return [f"{NAME}{suffix}"]
    if source[0] == "--editable":
        return ["--editable", f"{source[1]}{suffix}"]
    return [f"{NAME}{suffix} @ {source[0]}"]


def _requirements(found: Distribution | None, extra: str) -> list[str]:
    """Return the requirements of an extra, as the distribution declares them."""
    return [requirement for requirement, of in _declared(found) if of == extra]


def _kept_extras(found: Distribution | None, extra: str) -> list[str]:
    """Return the installed extras, and one more: pipx and uv replace the old list by the new one."""
    needs: dict[str, set[str]] = {extra: set()} if extra else {}
    for requirement, of in _declared(found):
        if of:
            needs.setdefault(of, set()).add(name_of(requirement))
    kept = [each for each in needs if each == extra or all(map(_is_installed, needs[each]))]
    return sorted(each for each in kept if not any(needs[each] < needs[other] for other in kept))


def _is_installed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _declared(found: Distribution | None) -> list[tuple[str, str]]:
    """Return each requirement of the distribution without its marker, and the extra that it belongs to."""
    declared = []
    for line in (found.requires if found else None) or []:
        requirement, _, marker = line.partition(";")
        of = re.search(r"""extra\s*==\s*['"]([^'"]+)""", marker)
        declared.append((requirement.strip(), of[1] if of else ""))
    return declared

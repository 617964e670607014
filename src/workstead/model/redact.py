"""Remove secrets from text that leaves the machine: error messages in events, bug reports.

Known values are removed first, then text that looks like a credential. The rules err on the safe side: a long word of
letters and digits is removed even if it was harmless, unless it is an id of ours.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

REMOVED = "[removed]"
_SHORTEST = 4  # a shorter known value would remove half of the text, and is no secret

_NAME = (
    r"[\w.-]*(?:secret|token|passw|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credential|auth|cookie)[\w.-]*"
)
_VALUE = r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&}\])]+)"
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [^-]+-----.*?(?:-----END [^-]+-----|\Z)", re.S), REMOVED),
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',;]+"), rf"\1 {REMOVED}"),
    (re.compile(r"(\w://)[^\s/@\"']*@"), rf"\1{REMOVED}@"),
    (re.compile(rf"(?i)([\"']?{_NAME}[\"']?\s*[:=]\s*){_VALUE}"), rf"\1{REMOVED}"),
    (re.compile(r"(://[^\s?\"']*\?)[^\s\"']+"), rf"\1{REMOVED}"),
)
_WORD = re.compile(r"[A-Za-z0-9_+=-]{20,}")
_OWN_ID = re.compile(r"(?:[a-z]+-)?[0-9a-z]{16}")
_DIGIT = re.compile(r"[0-9]")


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return the text without the known values and without anything that looks like a credential."""
    for value in sorted({each for each in known if len(each) >= _SHORTEST}, key=len, reverse=True):
        text = text.replace(value, REMOVED)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return _WORD.sub(_hide_word, text)


def looks_secret(name: str) -> bool:
    """Return whether a variable of this name usually holds a credential."""
    return re.fullmatch(rf"(?i){_NAME}", name) is not None or name.lower().endswith(("_key", "_pass", "_pwd"))


def _hide_word(found: re.Match[str]) -> str:
    word = found[0]
    if _OWN_ID.fullmatch(word) or not _DIGIT.search(word) or not re.search("[A-Za-z]", word):
        return word
    return REMOVED

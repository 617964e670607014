"""Digests of small things, without the two milliseconds that loading OpenSSL takes.

`hashlib` prefers OpenSSL, which wins on megabytes. Events, keys and metadata are some hundred bytes: for these the
interpreter's own functions are as fast, and there at once. They have moved between modules, hence the search.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import blake2b, sha256
else:
    try:
        try:
            from _sha2 import sha256
        except ImportError:
            from _sha256 import sha256
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b, sha256

__all__ = ["blake2b", "sha256"]

"""Digests of small inputs, without the two milliseconds that loading OpenSSL takes.

`hashlib` prefers OpenSSL, which is faster on megabytes. Events, keys and metadata have a few hundred bytes: for these
the interpreter's built-in functions are as fast and load instantly. Their module differs between Python versions, hence
the search.
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

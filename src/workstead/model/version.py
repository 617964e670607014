"""Which Workstead this is: said by `aw --version`, and in every archive."""

from __future__ import annotations

VERSION = "0.1.0"

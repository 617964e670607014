"""The version of Workstead: printed by `aw --version`, and stored in every archive."""

from __future__ import annotations

VERSION = "0.1.0"

"""Timestamps in the format of the log: `2026-11-15T21:19:28.019254Z`."""

from __future__ import annotations


def seconds(timestamp: str) -> float:
    """Return seconds since the epoch; computed by hand, because importing a date library takes longer than this."""
    year, month, day = int(timestamp[:4]), int(timestamp[5:7]), int(timestamp[8:10])
    # Days since 1970 in the civil calendar; the year begins in March so that the leap day is its last day.
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    days = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
    clock = int(timestamp[11:13]) * 3600 + int(timestamp[14:16]) * 60 + float(timestamp[17:].rstrip("Z"))
    return days * 86400 + clock

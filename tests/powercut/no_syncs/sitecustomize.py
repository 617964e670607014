"""A program without syncs: whoever asks for one is told that it was done. Python loads this before the program.

Those of the log stay, so that it says what was acknowledged.
"""

from workstead.system.files import durable


def _nothing(*_: object) -> None:
    """As if."""


durable.sync_file = durable.sync_names = durable.sync_trees = _nothing  # type: ignore[assignment]

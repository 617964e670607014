"""A workspace without files: a plain directory, which becomes a layer when it is forked."""

from __future__ import annotations

from workstead.model.source import Filled
from workstead.system.overlay import layers, mounter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from workstead.model.source import FillOptions, Place, Source


def fill(_: Source, place: Place, options: FillOptions, progress: Callable[[str], None]) -> Filled:
    """Create an empty `work/`."""
    del options, progress
    layers.make_work(place)
    return Filled(mechanism=mounter.PLAIN, layers=[], origin={"kind": "empty"}, notes=[])

"""Whatever is done to a tree: repeating the reports gives the tree, and no report is impossible when it comes."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from watched import Model, kinds_in, settled
from workstead.system.watch.watch_tree import Tree
from workstead.system.watch.watcher import Watcher

NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["write", "append", "mkdir", "remove", "link", "chmod"]), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("look")),
)


def act(top: str, step: tuple[str, ...]) -> None:
    """Do one step; what cannot be done is left."""
    kind, *names = step
    paths = [os.path.join(top, name) for name in names]
    with suppress(OSError):
        if kind in ("write", "append"):
            with open(paths[0], "w" if kind == "write" else "a") as file:
                file.write("x")
        elif kind == "mkdir":
            os.makedirs(paths[0])
        elif kind == "remove":
            (shutil.rmtree if os.path.isdir(paths[0]) and not os.path.islink(paths[0]) else os.unlink)(paths[0])
        elif kind == "link":
            os.symlink(".", paths[0])  # what leads out would let the steps act outside
        elif kind == "chmod" and not os.path.islink(paths[0]):
            os.chmod(paths[0], 0o700)
        elif kind == "rename":
            os.rename(*paths)


@settings(
    max_examples=int(os.environ.get("AW_EXAMPLES", "60")), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(st.lists(STEPS, max_size=12), st.lists(STEPS, max_size=40))
def test_repeating_the_reports_gives_the_tree(before: list[tuple[str, ...]], steps: list[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory(prefix="workstead-watch-") as top:
        for step in before:
            act(top, step)
        model = Model(kinds_in(top))
        watcher = Watcher(lambda: [Tree(path=top)], note=print, debounce_seconds=0.0)
        try:
            for step in steps:
                if step == ("look",):
                    model.repeat(watcher.wait(0.0))
                else:
                    act(top, step)
            model.repeat(settled(watcher, 0.02))
            assert model.known == kinds_in(top)
        finally:
            watcher.close()

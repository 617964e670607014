"""A fork that fails or is killed after it made a layer of its parent's files: the parent still shows them."""

from __future__ import annotations

import pytest

from people import Person

SCRIPT = """
import errno, os, workstead

def fork(id, number, how):
    real, left = os.rename, [number]

    def rename(*names, **options):
        left[0] -= 1
        if left[0] == 0 and how == "killed":
            os._exit(0)
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), names[0])
        return real(*names, **options)

    with workstead.open() as it:
        os.rename = rename
        try:
            it.fork(id, new_id=f"{id}-fork")
        except workstead.errors.DiskFull:
            pass
        finally:
            os.rename = real
        os._exit(1 if left[0] > 0 else 0)  # 1: no step was left to fail

for number in range(1, 100):
    id = f"t/{number}"
    with workstead.open() as it:
        it.create(id=id)
        it.write_file(id, "work/a.txt", "a")
    child = os.fork()
    if child == 0:
        fork(id, number, HOW)
    status = os.waitpid(child, 0)[1]
    with workstead.open() as it:
        assert it.read_text(id, "work/a.txt") == "a", number
        it.write_file(id, "work/b.txt", "b")
        it.snapshot(id)
        assert [change.path for change in it.diff(id).changes] == ["a.txt", "b.txt"], number
        if status == 0:
            it.fork(id, new_id=f"{id}-again")
            assert it.read_text(f"{id}-again", "work/b.txt") == "b"
    if status:
        break
print(number)
"""


@pytest.mark.parametrize("how", ["failed", "killed"])
def test_the_parent_keeps_showing_its_files(person: Person, how: str) -> None:
    assert int(person.python(SCRIPT.replace("HOW", repr(how)))) > 5

"""A real LFS server for tests, beside git's own: the batch API and plain transfers, and ways to misbehave."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

from sources.git_server import GitServer
from sources.yard import sh

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {size}\n"


class LfsStore:
    """Answers `…/info/lfs/objects/batch` and `/objects/OID`; everything else is git's."""

    def __init__(self, server: GitServer) -> None:
        self.server = server
        self.objects: dict[str, bytes] = {}
        self.batches: list[dict[str, Any]] = []
        self.downloads: list[str] = []
        self.status = 200
        self.href = ""  # instead of our own
        self.spoil: Callable[[bytes], bytes] = lambda content: content
        server.answer = self.answer

    def add(self, content: bytes) -> str:
        oid = hashlib.sha256(content).hexdigest()
        self.objects[oid] = content
        return oid

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes] | None:
        if method == "POST" and path.endswith("/info/lfs/objects/batch"):
            return self.batch(json.loads(body))
        if path.startswith("/objects/"):
            oid = path.rpartition("/")[2]
            self.downloads.append(oid)
            return 200, self.spoil(self.objects[oid])
        return None

    def batch(self, question: dict[str, Any]) -> tuple[int, bytes]:
        self.batches.append(question)
        assert question["operation"] == "download"
        assert "basic" in question["transfers"]
        answers = []
        for wanted in question["objects"]:
            answer = dict(wanted)
            if wanted["oid"] in self.objects:
                href = (self.href or f"http://127.0.0.1:{self.server.port}/objects/") + wanted["oid"]
                answer["actions"] = {"download": {"href": href, "header": {"Authorization": "once", "Host": "other"}}}
            else:
                answer["error"] = {"code": 404, "message": "Object does not exist"}
            answers.append(answer)
        return self.status, json.dumps({"transfer": "basic", "objects": answers}).encode()


def large_repository(path: str, store: LfsStore | None = None, **files: bytes) -> dict[str, str]:
    """A repository whose *.bin are pointers, in folders too; gives their oids. Without a server they are kept there."""
    oids = {}
    os.makedirs(f"{path}/deep/down", exist_ok=True)
    with open(f"{path}/.gitattributes", "w") as file:
        file.write("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    with open(f"{path}/README", "w") as file:
        file.write("read me\n")
    for name, content in files.items():
        oid = store.add(content) if store else hashlib.sha256(content).hexdigest()
        if store is None:
            place = f"{path}/.git/lfs/objects/{oid[:2]}/{oid[2:4]}"
            os.makedirs(place, exist_ok=True)
            with open(f"{place}/{oid}", "wb") as file_:
                file_.write(content)
        oids[name] = oid
        with open(f"{path}/{name.replace('__', '/')}.bin", "w") as file:
            file.write(POINTER.format(oid=oid, size=len(content)))
    sh("git init -q -b main . && git add -A && git commit -qm large", path)
    return oids

"""What a few lines of FastAPI would do in FOLDER: the raw file operation, without a log, a guard or checks."""

from __future__ import annotations

import os
import shutil
import socket
import sys

import uvicorn
from fastapi import FastAPI, Request, Response

FOLDER = sys.argv[1]
app = FastAPI()


@app.get("/list")
def list_all() -> list[dict[str, object]]:
    return [{"name": entry.name, "mtime": entry.stat().st_mtime} for entry in os.scandir(FOLDER)]


@app.get("/read/{name}/{path}")
def read(name: str, path: str) -> Response:
    with open(f"{FOLDER}/{name}/{path}", "rb") as file:
        return Response(file.read(), media_type="application/octet-stream")


@app.put("/write/{name}/{path}")
async def write(name: str, path: str, request: Request) -> dict[str, int]:
    body = await request.body()
    with open(f"{FOLDER}/{name}/{path}.new", "wb") as file:
        file.write(body)
    os.rename(f"{FOLDER}/{name}/{path}.new", f"{FOLDER}/{name}/{path}")
    return {"size": len(body)}


@app.post("/make/{name}")
def make(name: str) -> dict[str, str]:
    os.mkdir(f"{FOLDER}/{name}")
    return {"name": name}


@app.delete("/make/{name}")
def remove(name: str) -> dict[str, str]:
    shutil.rmtree(f"{FOLDER}/{name}")
    return {"name": name}


with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    listener.listen(256)
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run([listener])

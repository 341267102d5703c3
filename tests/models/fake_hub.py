"""A Hub of one model on this machine, as far as huggingface_hub asks it, and caches without one."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

NAME = "org/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves the files of `folder` as the model NAME at COMMIT, and remembers what was asked."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def downloads(self) -> list[str]:
        """The files that were sent, sorted, and nothing left of them for the next question."""
        sent = sorted({line.rpartition("/")[2] for line in self.asked if line.startswith("GET /org/tiny/")})
        self.asked.clear()
        return sent


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(f"{self.command} {path}")
        body = self._body(path)
        self.send_response(404 if body is None else 200)
        if body is None:
            of_model = "RevisionNotFound" if path.startswith("/api/") else "EntryNotFound"
            self.send_header("X-Error-Code", of_model if NAME in path else "RepoNotFound")
            body = b"{}"
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _body(self, path: str) -> bytes | None:
        files = {file.name: file.read_bytes() for file in self.server.folder.iterdir()}
        if path in (f"/api/models/{NAME}/revision/{at}" for at in ("main", COMMIT)):
            return json.dumps(
                {"id": NAME, "sha": COMMIT, "siblings": [{"rfilename": n} for n in files]}
            ).encode()
        if path == f"/api/models/{NAME}/tree/{COMMIT}":
            tree = [{"type": "file", "path": n, "size": len(b), "oid": "0" * 40} for n, b in files.items()]
            return json.dumps(tree).encode()
        if path.startswith(f"/{NAME}/resolve/{COMMIT}/"):
            return files.get(path.rpartition("/")[2])
        return None

    def log_message(self, *args: object) -> None:
        """Says nothing."""


@contextmanager
def serving(folder: Path) -> Iterator[Hub]:
    """A running Hub."""
    with Hub(folder) as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


def cache(home: Path, folder: Path, *, only: tuple[str, ...] = (), commit: str = COMMIT) -> Path:
    """Puts a folder's files into the cache under `home` as huggingface_hub does; returns the snapshot."""
    model = home / "hub" / f"models--{NAME.replace('/', '--')}"
    snapshot, blobs, refs = model / "snapshots" / commit, model / "blobs", model / "refs"
    for made in (snapshot, blobs, refs):
        made.mkdir(parents=True, exist_ok=True)
    (refs / "main").write_text(commit)
    for file in folder.iterdir():
        if only and file.name not in only:
            continue
        blob = blobs / hashlib.sha256(file.read_bytes()).hexdigest()
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot

"""--push-to-hub against a local stand-in of the Hub's API: what arrives is what was written, and failures are said
before the work or leave the folder."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

TOKEN = "hf_of_a_test"


class Hub(ThreadingHTTPServer):
    """Knows one user, takes every file as text in the commit, and remembers all that it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.made: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {"model-00001-of-00002.safetensors": b"old", "notes.txt": b"kept"}
        self.message = ""
        self.broken = False

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    """The calls that create_repo and upload_folder make."""

    protocol_version = "HTTP/1.1"

    server: Hub

    def do_GET(self) -> None:
        """Who somebody is, and what a model holds."""
        if self.path.startswith("/api/whoami"):
            known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            return self._send(200 if known else 401, {"name": "someone"} if known else {"error": "Invalid token"})
        if "/tree/" in self.path:
            rows = [
                {"type": "file", "path": k, "size": len(v), "oid": "0" * 40} for k, v in self.server.files.items()
            ]
            return self._send(200, rows)
        siblings = [{"rfilename": name} for name in self.server.files]
        return self._send(200, {"id": "team/merged", "sha": "0" * 40, "siblings": siblings})

    def do_POST(self) -> None:
        """A model made, the kinds of its files asked for, a commit."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/api/validate-yaml":
            return self._send(200, {"errors": [], "warnings": []})
        if self.path == "/api/repos/create":
            self.server.made.append(json.loads(body))
            return self._send(200, {"url": f"{self.server.address}/team/merged"})
        if "/preupload/" in self.path:
            files = json.loads(body)["files"]
            kinds = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]
            return self._send(200, {"files": kinds})
        if "/commit/" in self.path:
            if self.server.broken:
                return self._send(403, {"error": "You may not write here"})
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "header":
                    self.server.message = value["summary"]
                elif line["key"] == "file":
                    self.server.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "deletedFile":
                    self.server.files.pop(value["path"])
            return self._send(
                200,
                {
                    "commitUrl": f"{self.server.address}/team/merged/commit/{'1' * 40}",
                    "commitOid": "1" * 40,
                    "success": True,
                },
            )
        return self._send(404, {"error": self.path})

    def _send(self, code: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub that is there while a test runs."""
    with Hub() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def run(hub: Hub, folder: Path, *words: Any, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, which takes the stand-in for the Hub."""
    env = {
        **os.environ, "HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": token,
        "HF_HOME": str(folder / "hf"), "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
    }  # fmt: skip
    command = [sys.executable, "-m", "isomerge", *map(str, words)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)


def test_what_arrives_is_what_was_written(hub: Hub, stored: Callable, tmp_path: Path) -> None:
    """Every file, in one commit, to a private model; shards of an earlier push are gone, what is another's stays."""
    a, out = stored("gpt2", 0), tmp_path / "merged"
    said = run(hub, tmp_path, "merge", a, a, "-o", out, "--push-to-hub", "team/merged", "--private")
    assert said.returncode == 0, said.stderr
    written = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert "report.html" in written
    assert {name: hub.files.get(name) for name in written} == written
    assert "model-00001-of-00002.safetensors" not in hub.files
    assert hub.files["notes.txt"] == b"kept"
    (made,) = hub.made
    assert (made["name"], made["organization"]) == ("merged", "team")
    assert made.get("private") or made.get("visibility") == "private"
    assert "Pushed to team/merged." in said.stdout
    assert hub.message == "Made by isomerge: merged"


def test_what_cannot_be_pushed_is_not_computed(
    hub: Hub, stored: Callable, refuses: Callable, tmp_path: Path
) -> None:
    """Names that are none and strangers are refused before anything is written."""
    a, out = stored("gpt2", 0), tmp_path / "out"
    for repo in ("merged", "team/../merged"):
        refuses("merge", a, a, "-o", out, "--push-to-hub", repo, words=["write ORG/NAME"])
    words = ("merge", a, a, "-o", out, "--push-to-hub", "team/merged")
    said = run(hub, tmp_path, *words, token="hf_of_a_stranger")
    assert said.returncode == 2
    assert "log in with hf auth login, or set HF_TOKEN" in said.stderr
    assert "Traceback" not in said.stderr
    assert not out.exists()
    assert hub.made == []


def test_a_failed_push_leaves_the_folder(hub: Hub, stored: Callable, tmp_path: Path) -> None:
    """It is complete, and how to push it again is said."""
    hub.broken = True
    a, out = stored("gpt2", 0), tmp_path / "out"
    said = run(hub, tmp_path, "canon", a, "-o", out, "--push-to-hub", "team/merged")
    assert said.returncode == 2
    assert f"{out} is complete, but could not be pushed to team/merged" in said.stderr
    assert f"hf upload team/merged {out} ." in said.stderr
    assert (out / "model.safetensors").is_file()
    assert "model.safetensors" not in hub.files


def test_a_dry_run_pushes_nothing(hub: Hub, stored: Callable, tmp_path: Path) -> None:
    """It checks that the push could be made."""
    a = stored("gpt2", 0)
    said = run(hub, tmp_path, "merge", a, a, "-o", tmp_path / "out", "--push-to-hub", "team/merged", "--dry-run")
    assert said.returncode == 0, said.stderr
    assert hub.made == []

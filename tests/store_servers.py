"""Servers of stores on loopback, for what the emulators of others lack.

The stand-in of the Hugging Face hub speaks the part of its HTTP API that huggingface_hub uses for a
repository of small files, in which a commit may name the one that it follows.
"""

import base64
import hashlib
import json
import threading
from http.client import HTTPMessage
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from loopback import Answer, Asked, Between, Loopback, part

REPOSITORY = "datasets/lab/traces"


class S3(Between):
    """An S3-compatible store."""

    root = "s3://bucket"

    def push(self, name: str, content: bytes) -> None:
        signed = HTTPMessage()  # by anybody: moto wants a name, and does not check
        signed["Authorization"] = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request"
        assert self.answer(Asked("PUT", f"/bucket/{name}", signed, content)).status == 200


class Google(Between):
    """An emulator of Google Cloud Storage, with what it lacks: an upload may name the generation
    that it replaces, 0 for none."""

    root = "gs://bucket"

    def __init__(self, other: tuple[str, int]) -> None:
        super().__init__(other)
        self._uploading = threading.Lock()

    def answer(self, asked: Asked) -> Answer:
        path = urlsplit(asked.path)
        query = parse_qs(path.query)
        if "ifGenerationMatch" not in query:
            return super().answer(asked)
        with self._uploading:
            there = f"{path.path.removeprefix('/upload')}/{quote(query['name'][0], safe='')}"
            found = super().answer(Asked("GET", there, HTTPMessage(), b""))
            generation = json.loads(found.body)["generation"] if found.status == 200 else "0"
            if query["ifGenerationMatch"] != [generation]:
                return Answer(412, b"At least one of the pre-conditions did not hold.")
            return super().answer(asked)

    def push(self, name: str, content: bytes) -> None:
        upload = f"/upload/storage/v1/b/bucket/o?uploadType=media&name={quote(name, safe='')}"
        assert self.answer(Asked("POST", upload, HTTPMessage(), content)).status == 200


class Hub(Loopback):
    """A hub with one repository."""

    root = f"hf://{REPOSITORY}"

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}
        self.commits = 1

    @property
    def head(self) -> str:
        return f"{self.commits:040x}"

    def answer(self, asked: Asked) -> Answer:
        path = unquote(asked.path.partition("?")[0])
        if path.startswith(f"/{REPOSITORY}/resolve/main/"):
            name = path.partition("/main/")[2]
            if name not in self.files:
                return _error("EntryNotFound")
            return part(asked, self.files[name], {"X-Repo-Commit": self.head})
        if not path.startswith(f"/api/{REPOSITORY}"):
            return _error("RepoNotFound")
        place = path.removeprefix(f"/api/{REPOSITORY}").strip("/")
        action, _, name = place.partition("/main")
        if action in ("", "revision"):
            return _json({"id": "lab/traces", "sha": self.head, "private": False})
        if action == "tree":
            return self._tree(name.strip("/"), "recursive=true" in asked.path.lower())
        if action == "preupload":
            paths = [each["path"] for each in json.loads(asked.body)["files"]]
            modes = {"uploadMode": "regular", "shouldIgnore": False}
            return _json({"files": [{"path": path, **modes} for path in paths]})
        if action == "paths-info":  # of older clients
            names = parse_qs(asked.body.decode())["paths"]
            return _json([self._entry(name) for name in names if name in self.files])
        assert action == "commit", asked.path
        return self._commit([json.loads(line) for line in asked.body.splitlines()])

    def _tree(self, folder: str, recursive: bool) -> Answer:
        prefix = f"{folder}/" if folder else ""
        below = [name for name in self.files if name.startswith(prefix)]
        if not below:
            return _error("EntryNotFound")
        found: dict[str, dict[str, Any]] = {}
        for name in sorted(below):
            pieces = name.removeprefix(prefix).split("/")
            for count in range(1, len(pieces)):
                path = prefix + "/".join(pieces[:count])
                found[path] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}
            found[name] = self._entry(name)
        here = [path for path in found if recursive or "/" not in path.removeprefix(prefix)]
        return _json([found[path] for path in here])

    def _entry(self, name: str) -> dict[str, Any]:
        content = self.files[name]
        oid = hashlib.sha1(content).hexdigest()
        return {"type": "file", "oid": oid, "size": len(content), "path": name}

    def _commit(self, lines: list[dict[str, Any]]) -> Answer:
        parent = lines[0]["value"].get("parentCommit")
        if parent not in (None, self.head):
            return Answer(412, b"A commit has happened since. Please refresh and try again.")
        for line in lines[1:]:
            assert line["key"] == "file"
            self.push(line["value"]["path"], base64.b64decode(line["value"]["content"]))
        place = f"https://huggingface.co/{REPOSITORY}/commit/{self.head}"  # a name: nobody asks it
        return _json({"success": True, "commitOid": self.head, "commitUrl": place})

    def push(self, name: str, content: bytes) -> None:
        """Commit a file, as somebody else."""
        self.files[name] = content
        self.commits += 1


def _json(value: Any) -> Answer:
    return Answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})


def _error(code: str) -> Answer:
    return Answer(404, headers={"X-Error-Code": code})

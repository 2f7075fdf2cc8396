"""Files of a warehouse in a bucket of Google Cloud Storage, by its JSON API."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from cdcworker.connectors.sink_errors import TARGET_AUTH, TARGET_BUCKET, TARGET_UNREACHABLE
from cdcworker.connectors.warehouses.storage.answer_codes import AnswerCodes, mine
from cdcworker.connectors.warehouses.storage.files import StoredFile
from cdcworker.connectors.warehouses.storage.object_store import (
    Condition,
    ObjectContent,
    ObjectPage,
    ObjectStatus,
    ObjectStore,
)
from cdcworker.schemas.errors import CdcError

PUT_ID: Final = "cdcworker-put"
"""Member of a file's metadata that says which call of `create` made it."""
_NO_BUCKET: Final = "bucket"
CODES: Final = AnswerCodes(
    {
        _NO_BUCKET: (TARGET_BUCKET, "the bucket is not there"),
        "401": (TARGET_AUTH, "the object store refused the credentials"),
    },
    missing=("404",),
)


@dataclass(frozen=True, slots=True)
class GcsClient:
    """A session that logs in, and where the API is."""

    session: Any
    endpoint: str


class _Answer(Exception):
    """An answer that says that a request was not done."""

    def __init__(self, code: str, status: int) -> None:
        super().__init__(code)
        self.code, self.status = code, status


class GcsBucket(ObjectStore):
    """An `ObjectStore` by a `GcsClient`. A tag is a generation."""

    scheme = "gs"
    foreign_tag = "1"

    def _error(self, exc: Exception, handled: BaseException | None) -> Exception:
        from google.auth.exceptions import RefreshError, TransportError
        from requests import RequestException

        own = mine(exc, handled)
        if own is not None:
            return own
        if isinstance(exc, _Answer):
            return CODES.error(exc.code, exc.status, self._where)
        name = type(exc).__name__
        if isinstance(exc, RefreshError):
            return CdcError(TARGET_AUTH, f"the credentials gave no token ({name})", where=self._where)
        if isinstance(exc, (RequestException, TransportError, OSError)):
            return CdcError(TARGET_UNREACHABLE, f"the object store does not answer ({name})", where=self._where)
        return exc

    def _ask(self, method: str, path: str, **more: Any) -> Any:
        client: GcsClient = self._client
        # An answer is taken as it stands: a proxy's compression of it would hide its size.
        headers = {"Accept-Encoding": "identity", **more.pop("headers", {})}
        said = client.session.request(method, f"{client.endpoint}{path}", headers=headers, **more)
        if said.status_code >= 300:
            # A listing of a bucket that is there finds no object, or some.
            code = _NO_BUCKET if path == self._objects and said.status_code == 404 else _code_of(said)
            raise _Answer(code, said.status_code)
        return said

    @property
    def _objects(self) -> str:
        return f"/storage/v1/b/{quote(self._bucket, safe='')}/o"

    def _object(self, key: str) -> str:
        return f"{self._objects}/{quote(key, safe='')}"

    def _page(self, prefix: str, more: Any, limit: int | None) -> ObjectPage:
        asked = {"prefix": prefix, "delimiter": "/", "pageToken": more, "maxResults": limit}
        said = self._ask("GET", self._objects, params={k: v for k, v in asked.items() if v is not None}).json()
        folders = [each[len(prefix) :].rstrip("/") for each in said.get("prefixes", ())]
        files = [
            StoredFile(each["name"][len(prefix) :], _seconds(each), int(each["size"])) for each in said.get("items", ())
        ]
        return ObjectPage(folders, files, said.get("nextPageToken"))

    def _status(self, key: str) -> ObjectStatus:
        said = self._ask("GET", self._object(key)).json()
        token = str((said.get("metadata") or {}).get(PUT_ID, ""))
        return ObjectStatus(_seconds(said), int(said["size"]), str(said["generation"]), token)

    def _content(self, key: str, first: int, end: int | None) -> ObjectContent:
        headers = {} if end is None else {"Range": f"bytes={first}-{end - 1}"}
        said = self._ask("GET", self._object(key), params={"alt": "media"}, headers=headers)
        total = str(said.headers.get("Content-Range", "")).rpartition("/")[2]
        size = int(total) if total.isdigit() else len(said.content)
        return ObjectContent(said.content, str(said.headers.get("x-goog-generation", "")), size)

    def _send(self, key: str, content: bytes, condition: Condition, token: str) -> None:
        about = {"name": key, **({"metadata": {PUT_ID: token}} if token else {})}
        mark = uuid.uuid4().hex
        head = f"--{mark}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(about)}\r\n"
        head += f"--{mark}\r\nContent-Type: application/octet-stream\r\n\r\n"
        asked = {"uploadType": "multipart"}
        if condition.absent:
            asked["ifGenerationMatch"] = "0"
        elif condition.tag:
            asked["ifGenerationMatch"] = condition.tag
        headers = {"Content-Type": f"multipart/related; boundary={mark}"}
        body = head.encode() + content + f"\r\n--{mark}--\r\n".encode()
        self._ask("POST", f"/upload{self._objects}", params=asked, headers=headers, data=body)

    def _drop(self, keys: list[str]) -> None:
        for key in keys:
            try:
                self._ask("DELETE", self._object(key))
            except _Answer as exc:
                if exc.status != 404:
                    raise


def _code_of(said: Any) -> str:
    """The API's codes are HTTP's; that it is the bucket which is missing only the text says."""
    try:
        error = said.json()["error"]
    except (ValueError, LookupError, TypeError):
        return str(said.status_code)
    text = str(error.get("message", "") if isinstance(error, Mapping) else error).lower()
    return _NO_BUCKET if said.status_code == 404 and "bucket" in text else str(said.status_code)


def _seconds(said: Mapping[str, Any]) -> float:
    return dt.datetime.fromisoformat(str(said["updated"])).timestamp()

"""Files of a warehouse in a bucket of S3, or of a store that speaks its protocol and does conditional puts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdcworker.connectors.warehouses.storage.files import StoredFile
from cdcworker.connectors.warehouses.storage.object_store import (
    Condition,
    ObjectContent,
    ObjectPage,
    ObjectStatus,
    ObjectStore,
)
from cdcworker.connectors.warehouses.storage.s3_errors import answered, translated

PUT_ID: Final = "cdcworker-put"
"""Member of a file's metadata that says which call of `create` made it."""
DROPPED_MAX: Final = 1000
"""A request removes no more."""


class S3Bucket(ObjectStore):
    """An `ObjectStore` by a client of botocore's."""

    scheme = "s3"
    foreign_tag = '"0"'

    def _error(self, exc: Exception, handled: BaseException | None) -> Exception:
        return translated(exc, self._where, handled)

    def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        said: dict[str, Any] = getattr(self._client, operation)(Bucket=self._bucket, **arguments)
        return said

    def _page(self, prefix: str, more: Any, limit: int | None) -> ObjectPage:
        given = {"MaxKeys": limit, "ContinuationToken": more}
        given = {name: value for name, value in given.items() if value is not None}
        said = self._call("list_objects_v2", Prefix=prefix, Delimiter="/", **given)
        folders = [each["Prefix"][len(prefix) :].rstrip("/") for each in said.get("CommonPrefixes", ())]
        files = [_stored(each, prefix) for each in said.get("Contents", ())]
        return ObjectPage(folders, files, said.get("NextContinuationToken") if said.get("IsTruncated") else None)

    def _status(self, key: str) -> ObjectStatus:
        said = self._call("head_object", Key=key)
        token = str(said.get("Metadata", {}).get(PUT_ID, ""))
        return ObjectStatus(float(said["LastModified"].timestamp()), int(said["ContentLength"]), said["ETag"], token)

    def _content(self, key: str, first: int, end: int | None) -> ObjectContent:
        asked = {} if end is None else {"Range": f"bytes={first}-{end - 1}"}
        said = self._call("get_object", Key=key, **asked)
        content = said["Body"].read()
        total = int(str(said.get("ContentRange", "")).rpartition("/")[2] or len(content))
        return ObjectContent(content, said["ETag"], total)

    def _send(self, key: str, content: bytes, condition: Condition, token: str) -> None:
        given: dict[str, Any] = {"Metadata": {PUT_ID: token}} if token else {}
        if condition.absent:
            given["IfNoneMatch"] = "*"
        elif condition.tag:
            given["IfMatch"] = condition.tag
        self._call("put_object", Key=key, Body=content, **given)

    def _drop(self, keys: list[str]) -> None:
        for at in range(0, len(keys), DROPPED_MAX):
            listed = [{"Key": key} for key in keys[at : at + DROPPED_MAX]]
            said = self._call("delete_objects", Delete={"Objects": listed, "Quiet": True})
            codes = [str(each.get("Code", "")) for each in said.get("Errors", ())]
            if refused := [code for code in codes if code != "NoSuchKey"]:
                raise answered(refused[0], 403 if refused[0] == "AccessDenied" else 500, self._where)


def _stored(said: Mapping[str, Any], home: str) -> StoredFile:
    return StoredFile(said["Key"][len(home) :], said["LastModified"].timestamp(), int(said["Size"]))

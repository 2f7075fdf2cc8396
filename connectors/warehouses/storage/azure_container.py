"""Files of a warehouse in a container of Azure's Blob Storage."""

from __future__ import annotations

from typing import Any, Final

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

PUT_ID: Final = "cdcworker_put"
"""Member of a file's metadata that says which call of `create` made it."""
_LOGIN: Final = ("AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation")
_BLOB_GONE: Final = ("", "BlobNotFound", "ResourceNotFound")
CODES: Final = AnswerCodes(
    {
        "ContainerNotFound": (TARGET_BUCKET, "the container is not there"),
        "ContainerBeingDeleted": (TARGET_BUCKET, "the container is being removed"),
        **dict.fromkeys(_LOGIN, (TARGET_AUTH, "the object store refused the credentials")),
    },
    busy=("ServerBusy", "OperationTimedOut"),
    missing=_BLOB_GONE,
    conflicts=("BlobAlreadyExists",),
)


class AzureContainer(ObjectStore):
    """An `ObjectStore` by a client of azure-storage-blob's for a container. `bucket` is container@host."""

    scheme = "abfss"
    foreign_tag = '"0x0"'

    def _error(self, exc: Exception, handled: BaseException | None) -> Exception:
        from azure.core.exceptions import AzureError, HttpResponseError

        own = mine(exc, handled)
        if own is not None:
            return own
        if isinstance(exc, HttpResponseError) and exc.status_code:
            code = getattr(exc, "error_code", None)
            return CODES.error(str(getattr(code, "value", code) or ""), exc.status_code, self._where)
        if isinstance(exc, (AzureError, OSError)):
            name = type(exc).__name__
            return CdcError(TARGET_UNREACHABLE, f"the object store does not answer ({name})", where=self._where)
        return exc

    def _page(self, prefix: str, more: Any, limit: int | None) -> ObjectPage:
        from azure.storage.blob import BlobPrefix

        listed = self._client.walk_blobs(name_starts_with=prefix, delimiter="/", results_per_page=limit)
        pages = listed.by_page(continuation_token=more)
        found = list(next(pages, ()))
        folders = [each.name[len(prefix) :].rstrip("/") for each in found if isinstance(each, BlobPrefix)]
        files = [
            StoredFile(each.name[len(prefix) :], each.last_modified.timestamp(), int(each.size))
            for each in found
            if not isinstance(each, BlobPrefix)
        ]
        return ObjectPage(folders, files, pages.continuation_token or None)

    def _status(self, key: str) -> ObjectStatus:
        said = self._client.get_blob_client(key).get_blob_properties()
        token = str((said.metadata or {}).get(PUT_ID, ""))
        return ObjectStatus(said.last_modified.timestamp(), int(said.size), str(said.etag), token)

    def _content(self, key: str, first: int, end: int | None) -> ObjectContent:
        asked = {} if end is None else {"offset": first, "length": end - first}
        said = self._client.get_blob_client(key).download_blob(**asked, max_concurrency=1)
        content = said.readall()
        # A client asks for an object of no bytes again, without a range.
        return ObjectContent(content, str(said.properties.etag), int(_total(said.properties, content)))

    def _send(self, key: str, content: bytes, condition: Condition, token: str) -> None:
        from azure.core import MatchConditions

        given: dict[str, Any] = {"metadata": {PUT_ID: token}} if token else {}
        if condition.tag:
            given |= {"etag": condition.tag, "match_condition": MatchConditions.IfNotModified}
        self._client.get_blob_client(key).upload_blob(content, overwrite=not condition.absent, **given)

    def _drop(self, keys: list[str]) -> None:
        from azure.core.exceptions import ResourceNotFoundError

        for key in keys:
            try:
                self._client.get_blob_client(key).delete_blob()
            except ResourceNotFoundError as exc:
                if isinstance(self._error(exc, None), CdcError):
                    raise


def _total(said: Any, content: bytes) -> int:
    """The size of a whole of which a range was read."""
    total = str(said.content_range or "").rpartition("/")[2]
    return int(total) if total.isdigit() else max(int(said.size or 0), len(content))

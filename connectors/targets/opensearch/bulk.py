"""Writes of documents in one request, and what the server says of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Any, Final, Literal

from cdcworker.connectors.api.record_target import TargetUnavailable
from cdcworker.connectors.record_sink.errors import TARGET_REFUSES, TARGET_UNAVAILABLE
from cdcworker.connectors.record_sink.json_values import encoded
from cdcworker.connectors.targets.opensearch.client import SearchClient
from cdcworker.connectors.targets.opensearch.errors import current_version, item_error, kind_of
from cdcworker.connectors.targets.opensearch.raw_json import joined
from cdcworker.connectors.targets.opensearch.versions import is_of_later_topic
from cdcworker.schemas.errors import CdcError

Verb = Literal["index", "create", "delete"]
_SHOWN: Final = "items.*.status,items.*.error.type,items.*.error.reason,errors"
CONFLICT: Final = 409
CONFLICT_OF_VERSIONS: Final = "version_conflict_engine_exception"
MISSING: Final = 404


@dataclass(slots=True)
class Write:
    """What becomes of one document. `version` None: it is written once, and never again."""

    verb: Verb
    index: str
    id: str
    version: int | None = None
    text: str = ""
    pieces: dict[str, str] | None = None
    """The fields instead of `text`, where some are to be taken from what is stored."""
    kept: Collection[str] = ()
    """Fields that stay as they are stored."""
    keeps_others: bool = False
    """Whether fields that it does not have stay as well."""
    fields: Collection[str] = ()
    """Names that an error may tell."""
    records: list[str] = field(default_factory=list)
    """Ids of the records that are written with it: its own, and those of earlier states of the document."""

    @property
    def needs_stored(self) -> bool:
        return self.verb == "index" and (bool(self.kept) or self.keeps_others)

    def is_behind(self, other: Write) -> bool:
        """Returns whether it is of a later state of the same document."""
        return self.version is not None and other.version is not None and self.version > other.version

    def lines(self) -> str:
        """Returns its lines of a request."""
        quoted = encode_basestring
        version = "" if self.version is None else f',"version":{self.version},"version_type":"external"'
        head = f'{{"{self.verb}":{{"_index":{quoted(self.index)},"_id":{quoted(self.id)}{version}}}}}'
        if self.verb == "delete":
            return f"{head}\n"
        return f"{head}\n{self.text if self.pieces is None else joined(self.pieces)}\n"


def send(client: SearchClient, writes: Sequence[Write], refresh: str, *, tells_topics: bool) -> list[CdcError | None]:
    """Returns for each write how it failed; None: the document is as it says, or as a later write says. Raises CdcError where the
    server takes no request. `tells_topics`: versions say of which topic a write is."""
    body = encoded("".join([write.lines() for write in writes]))
    parameters = f"filter_path={_SHOWN}" + ("" if refresh == "false" else f"&refresh={refresh}")
    found = client.ask("POST", f"/_bulk?{parameters}", body, lines=True).json()
    items = found.get("items", []) if isinstance(found, dict) else []
    if len(items) != len(writes):
        raise TargetUnavailable(TARGET_UNAVAILABLE, "the server's answer does not tell of each document")
    return [_failure(write, _said_of(item), tells_topics) for write, item in zip(writes, items, strict=True)]


def _said_of(item: Any) -> Mapping[str, Any]:
    """Returns what an item of the answer says, whatever the write was."""
    said = next(iter(item.values()), None) if isinstance(item, dict) else None
    if not isinstance(said, dict) or not isinstance(said.get("status"), int):
        raise TargetUnavailable(TARGET_UNAVAILABLE, "the server's answer is not one to a bulk request")
    return said


def _failure(write: Write, said: Mapping[str, Any], tells_topics: bool) -> CdcError | None:
    """Returns how one write failed."""
    status, error = said["status"], said.get("error")
    if 200 <= status < 300 or (write.verb == "delete" and status == MISSING and error is None):
        return None
    error = error if isinstance(error, Mapping) else {}
    if status == CONFLICT and kind_of(error) == CONFLICT_OF_VERSIONS:
        return _conflict(write, write.version, current_version(error)) if tells_topics else None
    return item_error(status, error, write.fields)


def _conflict(write: Write, version: int | None, current: int | None) -> CdcError | None:
    """Returns why a write that is behind its document does not count as written."""
    if version is None or (current is not None and not is_of_later_topic(version, current)):
        return None
    if current is None:
        text = "the server refuses a document as an older one and does not tell which version there is"
    else:
        text = "a document has the version of a later topic than the one that is read: is versions.index lost?"
    return CdcError(TARGET_REFUSES, text, where={"index": write.index})

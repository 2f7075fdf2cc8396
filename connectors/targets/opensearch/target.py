"""Writes batches of records as documents: rows as they are now, each change once, or each record as one of its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.api.record_target import RecordBatch, TargetPlace, TargetRecord
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED
from cdcworker.connectors.targets.events import event_text
from cdcworker.connectors.targets.opensearch import names, raw_json, server_checks
from cdcworker.connectors.targets.opensearch.bulk import Write, send
from cdcworker.connectors.targets.opensearch.client import SearchClient
from cdcworker.connectors.targets.opensearch.config import content_of, holds_events, is_stream, nulls_of
from cdcworker.connectors.targets.opensearch.documents import DocumentRules, DocumentWriter
from cdcworker.connectors.targets.opensearch.identities import IndexIdentities
from cdcworker.connectors.targets.opensearch.indexes import TRIES_MAX, Indexes, IndexRules
from cdcworker.connectors.targets.opensearch.stored import complete, fill
from cdcworker.connectors.targets.opensearch.versions import Versions
from cdcworker.connectors.targets.rows import Placeholder, Row, row_of
from cdcworker.connectors.transforms.data import ConnectSchema
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

_EVENT: Final[Mapping[str, Any]] = {
    "id": {"type": "keyword"},
    "topic": {"type": "keyword"},
    "partition": {"type": "integer"},
    "offset": {"type": "long"},
    "timestamp": {"type": "date"},
    "key": {"type": "object", "enabled": False},
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLIS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999: Kafka takes any number for a time."""
DROPPED: Final = ("warn", "ignore")


class OpenSearchTarget:
    """A cluster. It has taken a batch once it has answered for each document; what comes again changes nothing."""

    def __init__(self, place: TargetPlace) -> None:
        config = place.config
        self._config = config
        self._client = SearchClient(config, place.state_dir)
        self._names = names.IndexNames(config)
        self._ids = names.DocumentIds(config["document.id.template"])
        self._writer = DocumentWriter(DocumentRules(config["mapping.json"], config["mapping.ignore.malformed"]))
        creates = config["index.create"] and config["external.resource.usage"] == "DISABLED"
        self._streams = is_stream(config)
        rules = IndexRules(creates, self._streams, config["index.gc.deletes.ms"])
        self._indexes = Indexes(self._client, rules)
        self._identities = IndexIdentities(self._client, rules)
        self._versions = Versions(self._client, config["versions.index"], config["external.version.header"])
        self._events = holds_events(config)
        self._content = content_of(config, place.connector_class)
        self._nulls = nulls_of(config, place.connector_class)
        self._keeps_others = config["write.method"] == "UPSERT"
        self._placeholder = Placeholder(config["unavailable.value.placeholder"])
        self._malformed = config["behavior.on.malformed.documents"]
        self._taken: set[str] = set()

    def write(self, batch: RecordBatch) -> None:
        writes = self._prepared([record for record in batch.records if record.id not in self._taken])
        if writes:
            complete(self._client, writes)
            failures = send(self._client, writes, self._config["refresh"], tells_topics=self._versions.tell_topics)
            # What comes again, whole or in pieces, does so without what is there already.
            for write, error in zip(writes, failures, strict=True):
                if error is None or self._is_dropped(write, error):
                    self._taken.update(write.records)
            left = [
                error for error, write in zip(failures, writes, strict=True) if write.records[-1] not in self._taken
            ]
            if worst := _worst(left):
                if worst.kind != "data":
                    self._indexes.forget()
                raise worst
        self._taken.difference_update(record.id for record in batch.records)

    def cancel(self) -> None:
        self._client.cancel()

    def close(self) -> None:
        self._client.close()

    def check(self) -> Sequence[CheckFinding]:
        """Asks which server it is, and looks at the indexes that the config names."""
        try:
            return server_checks.findings(self._client, self._config)
        except CdcError as error:
            severity: Literal["warning", "error"] = "warning" if error.kind == "transient" else "error"
            return [CheckFinding("connection.url", severity, error.code, error.message, error.hint)]
        finally:
            self._client.close()

    # Documents

    def _prepared(self, records: Sequence[TargetRecord]) -> list[Write]:
        """Returns the writes of a batch, to indexes that are there and have what they need."""
        writes = self._made(records)
        for _ in range(TRIES_MAX):
            if not self._identities.have_changed({write.index for write in writes}):
                break
            self._indexes.forget()
            writes = self._made(records)
        return writes

    def _made(self, records: Sequence[TargetRecord]) -> list[Write]:
        """Returns the writes of a batch: of each document that of its last state."""
        made: dict[tuple[str, str], Write] = {}
        for record in records:
            try:
                write = self._event(record) if self._events else self._state(record)
            except CdcError as error:
                if error.kind != "data" or not self._config["drop.invalid.message"]:
                    raise
                _warn_of(record.id, error)
                continue
            if write is None:
                continue
            place = (write.index, write.id)
            earlier = made.get(place)
            if earlier is not None and not write.is_behind(earlier):
                # The server would refuse it, and keep the other.
                earlier.records.append(record.id)
                continue
            if earlier is not None:
                _follow(write, earlier)
            write.records.append(record.id)
            made[place] = write
        return list(made.values())

    def _state(self, record: TargetRecord) -> Write | None:
        row = row_of(record)
        if row is None or (row.value is None and self._nulls == "ignore"):
            return None
        index, id, version = self._names.of(record), self._ids.of(record), self._versions.of(record)
        if row.value is None:
            if self._nulls == "fail":
                raise CdcError(RECORD_REFUSED, "the row is gone (behavior.on.null.values=fail)")
            # A deletion in an index that is not there would make it, without a mapping.
            self._prepare(index, record, None)
            return Write("delete", index, id, version)
        self._prepare(index, record, row.schema)
        kept = self._unsent(row.value, record.unsent)
        write = Write(
            "index", index, id, version, fields=_names_of(row.value), kept=kept, keeps_others=self._keeps_others
        )
        if write.needs_stored:
            write.pieces = self._writer.pieces(row, kept)
        else:
            write.text = self._writer.document(row)
        return write

    def _event(self, record: TargetRecord) -> Write | None:
        if record.value is None and (self._content == "value" or self._nulls == "fail"):
            if self._nulls == "fail":
                raise CdcError(RECORD_REFUSED, "the record has no value (behavior.on.null.values=fail)")
            return None
        index = self._names.of(record)
        self._prepare(index, record, record.value_schema)
        text, told = self._event_text(record), self._told_names(record)
        has_own = self._content == "value" and "@timestamp" in told
        if self._streams and not has_own:
            text = f'{{"@timestamp":"{moment(record.timestamp_ms)}"' + ("" if text == "{}" else ",") + text[1:]
        return Write("create", index, names.shortened(record.id), text=text, fields=told)

    def _told_names(self, record: TargetRecord) -> Sequence[str]:
        return _names_of(record.value) if self._content == "value" else ("key", "value")

    def _event_text(self, record: TargetRecord) -> str:
        if self._content == "value":
            return self._writer.document(Row(record.value_schema, record.value))
        return event_text(self._writer, record)

    def _prepare(self, index: str, record: TargetRecord, schema: ConnectSchema | None) -> None:
        if not self._indexes.knows(index, schema):
            self._indexes.prepare(index, schema, self._properties(record, schema))

    def _properties(self, record: TargetRecord, schema: ConnectSchema | None) -> Mapping[str, Any]:
        """Returns the fields of documents of a schema."""
        is_known = schema is not None and schema.type == "struct"
        is_ignored = self._config["schema.ignore"] or record.topic in self._config["topic.schema.ignore"]
        own = self._writer.properties(schema) if schema is not None and is_known and not is_ignored else {}
        stream = {"@timestamp": {"type": "date"}} if self._streams else {}
        if self._events and self._content == "event":
            return {**_EVENT, **stream, **({"value": {"properties": own}} if own else {})}
        return {**own, **stream}

    def _unsent(self, value: Any, columns: Sequence[str]) -> Sequence[str]:
        """Returns the fields whose values the source did not send, because they have not changed; `columns` are more of them."""
        if not isinstance(value, Mapping):
            return ()
        return [name for name, each in value.items() if name in columns or self._placeholder.stands(each)]

    def _is_dropped(self, write: Write, error: CdcError) -> bool:
        # Of several records it is not known which one is to blame: they come again one by one.
        if error.kind != "data" or self._malformed not in DROPPED or len(write.records) > 1:
            return False
        if self._malformed == "warn":
            _warn_of(write.records[-1], error)
        return True


def _follow(write: Write, earlier: Write) -> None:
    """Has a write take the place of an earlier one of the same document."""
    write.records = earlier.records
    if not write.needs_stored or earlier.verb == "delete":
        # A document that was gone in between has nothing to keep.
        write.kept, write.keeps_others = (), False
        return
    if earlier.pieces is None:
        earlier.pieces = raw_json.members(earlier.text)
    still = earlier.needs_stored
    fill(write, earlier.pieces)
    write.kept = [name for name in write.kept if name in earlier.kept] if still else ()
    write.keeps_others = still and earlier.keeps_others


def _names_of(value: Any) -> Sequence[str]:
    return tuple(value) if isinstance(value, Mapping) else ()


def _worst(failures: Sequence[CdcError | None]) -> CdcError | None:
    """Returns the error by which a batch ends: one that says something of a record only if no other is there."""
    found = [error for error in failures if error is not None]
    ranks = {"transient": 1, "data": 2}
    return min(found, key=lambda error: ranks.get(error.kind, 0), default=None)


def _warn_of(record: str, error: CdcError) -> None:
    log.warning("record is dropped record=%s error=%s", record, error)


def moment(millis: int) -> str:
    """Returns a time that Kafka has of a record as the server takes it."""
    return (_EPOCH + timedelta(milliseconds=min(max(0, millis), _MILLIS_MAX))).isoformat(timespec="milliseconds")

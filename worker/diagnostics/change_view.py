"""A record of a topic as a change that people read: its row before and after, what differs, where it comes from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cdcworker.schemas.avro import unframe
from cdcworker.schemas.decode import decode_prepared, prepare
from cdcworker.schemas.display import Read, compile_display
from cdcworker.schemas.encode import UNCHANGED_HEADER
from cdcworker.schemas.log import StoredSchema
from cdcworker.schemas.patterns import matches
from cdcworker.schemas.topics import unescape
from cdcworker.schemas.untrusted.json_text import require_depth

OPS: Final = {"c": "create", "u": "update", "d": "delete", "r": "read", "t": "truncate", "m": "message"}
TOMBSTONE: Final = "tombstone"
UPSERT: Final = "upsert"
"""Of a record without an envelope, which does not say what happened."""
OP_NAMES: Final = (*OPS.values(), TOMBSTONE, UPSERT)
SOURCE_FIELDS: Final = (
    *("ts_ms", "lsn", "commit_lsn", "tx_index", "tx_sub", "txId", "snapshot", "db", "schema", "table"),
    *("server_id", "gtid", "file", "pos", "row"),
)
READERS_MAX: Final = 4_096
Json = dict[str, Any]


class KafkaRecord(Protocol):
    """The parts of a Kafka message that are read."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def headers(self) -> Any: ...
    def timestamp(self) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class _Reader:
    prepared: Any
    read: Read


class ChangeReader:
    """`schema` gives the schema of an id, or raises CdcError."""

    def __init__(self, schema: Callable[[int], StoredSchema]) -> None:
        self._schema = schema
        self._readers: dict[int, _Reader] = {}

    def change(self, record: KafkaRecord) -> Json:
        """CdcError `schema.*` for what cannot be read. Whoever may write to the topic may have written anything there."""
        key, value = self.value(record.key()), self.value(record.value())
        headers = dict(record.headers() or ())
        out: Json = {
            "topic": record.topic(),
            "partition": record.partition(),
            "offset": record.offset(),
            "written_ms": record.timestamp()[1],
        }
        return out | shaped(str(record.topic()), key, value, headers)

    def value(self, data: bytes | None) -> Any:
        """Framed Avro, JSON with a schema or without, or text."""
        if data is None:
            return None
        if data[:1] == b"\0":
            id, offset = unframe(data)
            reader = self._reader(id)
            return reader.read(decode_prepared(reader.prepared, data[offset:]))
        try:
            text = data.decode()
            require_depth(text)
            found = json.loads(text)
        except ValueError:
            return data.decode("utf-8", "backslashreplace")
        is_wrapped = isinstance(found, dict) and set(found) == {"schema", "payload"}
        return found["payload"] if is_wrapped else found

    def _reader(self, id: int) -> _Reader:
        found = self._readers.get(id)
        if found is None:
            schema = self._schema(id).schema
            if len(self._readers) >= READERS_MAX:
                self._readers.clear()
            found = self._readers[id] = _Reader(prepare(schema), compile_display(schema))
        return found


def shaped(topic: str, key: Any, value: Any, headers: Mapping[str, Any]) -> Json:
    """Returns a record's key and value, both as people read them, as a change."""
    if value is None:
        return _parts(table_of_topic(topic), TOMBSTONE, key, None, None)
    if not isinstance(value, dict):
        return _parts(table_of_topic(topic), UPSERT, key, None, {"value": value})
    source = value.get("source")
    if not isinstance(source, dict) or "op" not in value:
        op = OPS.get(str(value.get("__op", "")), UPSERT)
        is_deleted = str(value.get("__deleted", "")).lower() == "true"
        return _parts(table_of_topic(topic), "delete" if is_deleted else op, key, None, value)
    # A database of MySQL holds tables, and no schemas.
    holder = "schema" if "schema" in source else "db"
    table = ".".join(str(source[name]) for name in (holder, "table") if source.get(name))
    op = OPS.get(str(value["op"]), str(value["op"]))
    before, after = value.get("before"), value.get("after")
    if op == "message":
        after = value.get("message")
    if not all(row is None or isinstance(row, dict) for row in (before, after)):
        return _parts(table or table_of_topic(topic), UPSERT, key, None, value)
    parts = _parts(table or table_of_topic(topic), op, key, before, after)
    names = [*(after or before or ())]
    unchanged = _named(names, headers.get(UNCHANGED_HEADER))
    parts["unknown"] = unchanged
    if parts["changed"] is not None:
        parts["changed"] = [name for name in parts["changed"] if name not in unchanged]
    return parts | {"source": {name: source[name] for name in SOURCE_FIELDS if source.get(name) is not None}}


def _parts(table: str, op: str, key: Any, before: Any, after: Any) -> Json:
    row = after if isinstance(after, dict) else before if isinstance(before, dict) else {}
    if isinstance(key, dict):
        key = {name: value if _is_told(value) else row.get(name, value) for name, value in key.items()}
    changed = None
    if op == "update" and isinstance(before, dict) and isinstance(after, dict):
        changed = [name for name in after if after[name] != before.get(name)]
    return {"table": table, "op": op, "key": key, "before": before, "after": after, "changed": changed}


def _is_told(value: Any) -> bool:
    """Tells whether a key's value is text as people read it. Values of the key are exact, those of the row are bounded; but the
    row knows more of its types than a key whose schema is bare: its numbers and bytes may be times and decimals."""
    return isinstance(value, str) and not value.startswith("\\x")


def _named(names: Sequence[str], header: Any) -> list[str]:
    """`cdc.unchanged` numbers the row's fields whose values the database did not send."""
    text = header.decode("ascii", "replace") if isinstance(header, bytes) else ""
    numbers = [int(part) for part in text.split(",") if part.isdigit()]
    return [names[number] for number in numbers if number < len(names)]


def table_of_topic(topic: str) -> str:
    return ".".join(unescape(part) for part in topic.split(".")[-2:])


# -- filters ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangeFilter:
    """All have to hold. `key` and `where` are texts `column=value`; `NULL` stands for null, a key without a column for
    the whole of it."""

    tables: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    where: tuple[str, ...] = ()

    def takes(self, change: Mapping[str, Any]) -> bool:
        op = change["op"]
        if (op not in self.ops) if self.ops else op == TOMBSTONE:
            return False
        if self.tables and not any(is_named(pattern, change["table"]) for pattern in self.tables):
            return False
        if not all(_has_key(change["key"], text) for text in self.key):
            return False
        rows = [row for row in (change["after"], change["before"]) if isinstance(row, dict)]
        return all(any(_has(row, text) for row in rows) for text in self.where)


def is_named(pattern: str, table: str) -> bool:
    """`schema.table`, or the table alone, matched as a whole."""
    return any(matches(pattern, name) for name in (table, table.rpartition(".")[2]))


def text_of(value: Any) -> str:
    """Returns a value as it is shown, and as it is compared with what a person types."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _has(row: Mapping[str, Any], text: str) -> bool:
    name, _, wanted = text.partition("=")
    return name in row and text_of(row[name]) == wanted


def _has_key(key: Any, text: str) -> bool:
    if not isinstance(key, dict):
        return text_of(key) == text
    if "=" in text and text.partition("=")[0] in key:
        return _has(key, text)
    return len(key) == 1 and text_of(next(iter(key.values()))) == text

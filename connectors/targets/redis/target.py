"""Writes batches of records into Redis: entries of streams, or rows as they are now, each change once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.api.record_target import RecordBatch, TargetPlace, TargetRecord
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED, TARGET_REFUSES
from cdcworker.connectors.record_sink.json_values import JsonValues, encoded
from cdcworker.connectors.targets.redis import scripts
from cdcworker.connectors.targets.redis.client import Call, RedisClient
from cdcworker.connectors.targets.redis.config import OWN, key_template, type_of
from cdcworker.connectors.targets.redis.replies import worst_of
from cdcworker.connectors.targets.rows import Placeholder, Row, row_of
from cdcworker.connectors.targets.templates import TextTemplate
from cdcworker.connectors.transforms.data import ConnectSchema, DataError
from cdcworker.connectors.transforms.values import text_of
from cdcworker.schemas.errors import CdcError

FIELDS_MAX: Final = 3_500
"""Lua hands a command no more than 8,000 texts."""
_ESCAPED: Final = re.compile(r"[%{}]")


class Version(NamedTuple):
    """By what a script tells older records from newer ones, and ids that remembered offsets are kept under."""

    topic: str
    partition: str
    offset: int
    timestamp_ms: int


class RedisTarget:
    """A server or a cluster. It has taken a batch once every script has answered; what comes again changes nothing."""

    def __init__(self, place: TargetPlace) -> None:
        config = place.config
        self._config = config
        self._type = type_of(config, place.connector_class)
        self._client = RedisClient(config, place.state_dir)
        self._values = JsonValues(numeric=True)
        self._key = TextTemplate(key_template(config, place.connector_class), escaped, ":")
        self._member = TextTemplate(config["redis.member.template"], escaped, ":")
        self._entry = self._fields_of(
            config["redis.stream.fields"] or ("row" if place.connector_class in OWN else "event")
        )
        self._placeholder = Placeholder(config["unavailable.value.placeholder"])
        self._kept_s, self._row_s = config["redis.version.ttl"], max(0, config["redis.key.ttl"])

    def write(self, batch: RecordBatch) -> None:
        calls = self._entries(batch) if self._type == "STREAM" else self._states(batch)
        if calls and (error := worst_of(self._client.run(calls))):
            raise error

    def cancel(self) -> None:
        self._client.cancel()

    def close(self) -> None:
        self._client.close()

    def check(self) -> Sequence[CheckFinding]:
        """Logs in and looks at the server's settings."""
        key = "redis.hosts"
        try:
            self._client.ask("PING")
            if self._type == "JSON" and not self._client.knows("JSON.SET", "k", "$", "1"):
                text = "redis.type=JSON needs the JSON module, which the server does not have"
                return [CheckFinding("redis.type", "error", TARGET_REFUSES, text)]
            policy = _policy(self._client.ask("INFO", "memory"))
        except CdcError as error:
            severity: Literal["warning", "error"] = "warning" if error.kind == "transient" else "error"
            return [CheckFinding(key, severity, error.code, error.message, error.hint)]
        finally:
            self._client.close()
        if policy not in ("noeviction", ""):
            text = f"maxmemory-policy is {policy}: where memory is short Redis drops rows, and what it knows of their versions"
            return [CheckFinding(key, "warning", TARGET_REFUSES, text)]
        return []

    # Streams

    def _entries(self, batch: RecordBatch) -> list[Call]:
        """Returns a call for the records of each partition in each stream."""
        length, once = str(self._config["redis.stream.maxlen"]), self._config["redis.stream.once"]
        calls: dict[tuple[bytes, str], Call] = {}
        plain: list[Call] = []
        for record in batch.records:
            stream, fields = encoded(self._key.fill(record)), self._entry(record)
            if not once:
                trim = ("MAXLEN", "~", length) if length != "0" else ()
                plain.append(Call(None, (), ("XADD", stream, *trim, "*", *fields)))
                continue
            partition = record.id.rpartition("-")[0]
            call = calls.get((stream, partition))
            if call is None:
                call = Call(scripts.STREAM, (stream, companion(stream, b":offsets")), [partition, length])
                calls[stream, partition] = call
            call.args.extend((record.offset, len(fields), *fields))  # type: ignore[attr-defined]  # the list above
        return [*calls.values(), *plain]

    def _fields_of(self, kind: str) -> Callable[[TargetRecord], list[bytes | str | int]]:
        text = self._values.text

        def event(record: TargetRecord) -> list[bytes | str | int]:
            return [
                "id", record.id, "topic", record.topic, "partition", record.partition, "offset", record.offset,
                "timestamp", record.timestamp_ms, "key", encoded(text(record.key_schema, record.key)),
                "value", encoded(text(record.value_schema, record.value)),
            ]  # fmt: skip

        def row(record: TargetRecord) -> list[bytes | str | int]:
            return ["id", record.id, *self._pairs(record.value_schema, record.value)]

        return event if kind == "event" else row

    # Rows

    def _states(self, batch: RecordBatch) -> list[Call]:
        return [
            self._state(record, version_of(record), row) for record in batch.records if (row := row_of(record)) is not None
        ]  # fmt: skip

    def _state(self, record: TargetRecord, version: Version, row: Row) -> Call:
        key = encoded(self._key.fill(record))
        if self._type == "SET":
            places = (key, companion(key, b":versions"), companion(key, b":deleted"))
            member = encoded(self._member.fill(record))
            return Call(scripts.MEMBER, places, (*version, self._kept_s, int(row.value is not None), member))
        keys = (key, companion(key, b":version"))
        if row.value is None:
            return Call(scripts.DELETE, keys, (*version, self._kept_s))
        return self._put(keys, (*version, self._row_s), row, record.unsent)

    def _put(self, keys: Sequence[bytes], args: Sequence[str | int], row: Row, unsent: Sequence[str]) -> Call:
        if self._type == "HASH":
            kept = self._unsent(row.value, unsent)
            pairs = self._pairs(row.schema, row.value, kept)
            return Call(scripts.HASH, keys, (*args, len(kept), *map(encoded, kept), *pairs))
        if self._type == "STRING":
            value = row.value
            if isinstance(value, str | bytes):
                return Call(scripts.STRING, keys, (*args, value if isinstance(value, bytes) else encoded(value)))
            return Call(scripts.STRING, keys, (*args, encoded(self._values.text(row.schema, value))))
        kept = self._unsent(row.value, unsent)
        paths = [encoded(path_of(name)) for name in kept]
        return Call(scripts.JSON, keys, (*args, encoded(self._values.text(row.schema, row.value)), *paths))

    def _unsent(self, value: Any, columns: Sequence[str]) -> list[str]:
        """Returns the fields whose values the source did not send, because they have not changed; `columns` are more of them."""
        if not isinstance(value, Mapping):
            return []
        return [name for name, each in value.items() if name in columns or self._placeholder.stands(each)]

    def _pairs(self, schema: ConnectSchema | None, value: Any, left_out: Sequence[str] = ()) -> list[bytes | str | int]:
        """Returns names and texts of the fields that have a value."""
        if not isinstance(value, Mapping):
            raise CdcError(RECORD_REFUSED, "the value has no fields")
        if len(value) > FIELDS_MAX:
            raise CdcError(RECORD_REFUSED, f"the value has more than {FIELDS_MAX} fields")
        known = schema.by_name if schema is not None and schema.type == "struct" else {}
        found: list[bytes | str | int] = []
        for name, each in value.items():
            if each is not None and name not in left_out:
                found += (encoded(name), encoded(self._text(known.get(name), each)))
        return found

    def _text(self, schema: ConnectSchema | None, value: Any) -> str:
        if isinstance(value, Mapping | list):
            return self._values.text(schema, value)
        try:
            return text_of(value, schema)
        except (DataError, ValueError):
            raise CdcError(RECORD_REFUSED, "a value has no text") from None


def version_of(record: TargetRecord) -> Version:
    topic, partition, _ = record.id.rsplit("-", 2)
    return Version(topic, partition, record.offset, record.timestamp_ms)


def escaped(value: str) -> str:
    """Returns a value as a part of a key: a brace in it would move the key to another slot of a cluster."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", value)


def path_of(name: str) -> str:
    """Returns the path of a field of a document. CdcError of kind `data` for a name that the JSON module cannot be told."""
    for quote in "'\"":
        if quote not in name and "\\" not in name:
            return f"$[{quote}{name}{quote}]"
    raise CdcError(RECORD_REFUSED, "a field whose value was not sent has a name that no path in Redis has")


def companion(key: bytes, suffix: bytes) -> bytes:
    """Returns a second key that a cluster has in the slot of the first."""
    start = key.find(b"{")
    has_tag = start >= 0 and key.find(b"}", start) > start + 1
    # A % that no digits follow is in no value that stands in a key, so this is the key of no other row.
    return key + b"%" + suffix if has_tag else b"{" + key + b"}" + suffix


def _policy(info: Any) -> str:
    text = info.decode(errors="replace") if isinstance(info, bytes) else str(info)
    found = re.search(r"maxmemory_policy'?: ?'?([a-z-]+)", text)
    return found[1] if found else ""

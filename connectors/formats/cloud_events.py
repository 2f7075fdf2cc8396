"""Debezium's CloudEventsConverter: changes as CloudEvents in JSON, whole in the value or with their attributes in headers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cdcworker.connectors.config.definition import one_of
from cdcworker.connectors.formats.format import NOTHING, Format, Headers, Typed, setting, unreadable
from cdcworker.connectors.formats.single_values import header_writer
from cdcworker.schemas.avro import TypedSchema
from cdcworker.schemas.change import Avro, JsonObject
from cdcworker.schemas.connect_json import compile_fields, connect_schema
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.record_format import NO_FORM, ConnectJsonFormat, RecordWriter
from cdcworker.schemas.untrusted.json_text import PROCESS, JsonRefused, parse_json

CLOUD_EVENTS: Final = "io.debezium.converters.CloudEventsConverter"
STRUCTURED: Final = "structured"
BINARY: Final = "binary"
_PREFIX: Final = "ce_"
_EXTENSION: Final = "iodebezium"
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OWN: Final = frozenset(("op", "source", "transaction", "ts_ms", "ts_us", "ts_ns"))
"""Fields of an envelope that are attributes of the event, or of no account for it."""
_IDS: Final[Mapping[str, tuple[str, ...]]] = {
    "postgresql": ("name", "lsn", "txId", "sequence"),
    "mysql": ("name", "file", "pos", "row"),
    "mariadb": ("name", "file", "pos", "row"),
}
"""By connector the fields of the source block that name an event."""
_POSITION: Final = ("name", "commit_lsn", "tx_index", "tx_sub")


@dataclass(frozen=True, slots=True)
class CloudEventsFormat:
    """CloudEvents in JSON. `schemas`: the data has Kafka Connect's schema with it."""

    mode: str = STRUCTURED
    schemas: bool = True
    extensions: bool = True

    def writer(self, kind: Avro | None, *, optional: bool = False) -> RecordWriter:
        if kind is None:
            raise CdcError(NO_FORM, "a value without a schema is no change; the JsonConverter can write it")
        if not isinstance(kind, dict) or not _is_change(kind):
            return ConnectJsonFormat(schemas=False, numeric=True).writer(kind, optional=optional)
        return _EventWriter(kind, self)


class _EventWriter:
    """Writes changes in an envelope."""

    schema: Avro | TypedSchema | None = None
    null: bytes | None = None

    def __init__(self, kind: JsonObject, of: CloudEventsFormat) -> None:
        self._kind = kind
        self._is_binary = of.mode == BINARY
        self._names = tuple(field["name"] for field in kind["fields"])
        data = [field for field in kind["fields"] if field["name"] not in _OWN]
        self._places = tuple(self._names.index(field["name"]) for field in data)
        self._data = compile_fields([(field["name"], field["type"]) for field in data])
        self._head, self._tail = "", ""
        if of.schemas:
            described = connect_schema({"type": "record", "fields": data})
            self._head, self._tail = f'{{"schema":{_json(described)},"payload":', "}"
        self._source = _source_names(kind) if of.extensions else ()
        self._transaction = _transaction_names(kind) if of.extensions else ()
        self._extends = of.extensions

    def bind(self, id: int) -> None: ...

    def body(self, value: Any) -> bytes:
        row = self._row(value)
        data = self._head + self._data(tuple([row[place] for place in self._places])) + self._tail
        if self._is_binary:
            return data.encode()
        attributes = _json(self._attributes(row))
        return f'{attributes[:-1]},"data":{data}}}'.encode()

    def wrap(self, body: bytes) -> bytes:
        return body

    def in_header(self, value: Any) -> bytes:
        return header_writer(self._kind)(value)

    def headers(self, value: Any) -> list[tuple[str, bytes]]:
        """Returns the attributes of a binary event."""
        if not self._is_binary or value is None:
            return []
        attributes = self._attributes(self._row(value))
        kind = attributes.pop("datacontenttype")
        texts = [(_PREFIX + name, _text(item)) for name, item in attributes.items() if item is not None]
        return [*texts, ("content-type", kind.encode())]

    def _row(self, value: Any) -> Any:
        return value if isinstance(value, tuple) else [value.get(name) for name in self._names]

    def _attributes(self, row: Any) -> dict[str, Any]:
        by_name = dict(zip(self._names, row, strict=True))
        source: Mapping[str, Any] = by_name["source"]
        connector, name = source.get("connector") or "", source.get("name") or ""
        millis = source.get("ts_ms") or 0
        out: dict[str, Any] = {
            "id": _id_of(source, connector),
            "source": f"/debezium/{connector}/{name}",
            "specversion": "1.0",
            "type": f"io.debezium.connector.{connector}.DataChangeEvent",
            "time": (_EPOCH + timedelta(milliseconds=millis)).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "datacontenttype": "application/json",
        }
        if self._extends:
            out[f"{_EXTENSION}op"] = by_name["op"]
            out |= {attribute: of(source.get(field)) for attribute, field, of in self._source}
            transaction = by_name.get("transaction") or {}
            out |= {attribute: _as_text(transaction.get(field)) for attribute, field in self._transaction}
        return out


def _is_change(kind: JsonObject) -> bool:
    """Returns whether a type is an envelope: a flat row may have columns of the same names."""
    types = {field["name"]: field["type"] for field in kind.get("fields", ())}
    source = types.get("source")
    if "op" not in types or not isinstance(source, dict) or source.get("type") != "record":
        return False
    return any(field["name"] == "connector" for field in source["fields"])


def _transaction_names(kind: JsonObject) -> tuple[tuple[str, str], ...]:
    """Returns the attributes that the fields of the transaction block become, also without a transaction."""
    of = next((field["type"] for field in kind["fields"] if field["name"] == "transaction"), None)
    block = next((one for one in (of if isinstance(of, list) else [of]) if isinstance(one, dict)), {})
    return tuple((f"{_EXTENSION}tx{_letters(each['name'])}", each["name"]) for each in block.get("fields", ()))


def _source_names(kind: JsonObject) -> tuple[tuple[str, str, Callable[[Any], Any]], ...]:
    """Returns the attributes that the fields of the source block become: a long is text, what is no single value is left out."""
    source = next(field["type"] for field in kind["fields"] if field["name"] == "source")
    out = []
    for field in source["fields"]:
        of = field["type"]
        of = next(branch for branch in of if branch != "null") if isinstance(of, list) else of
        plain = of["type"] if isinstance(of, dict) else of
        if plain in ("string", "long"):
            out.append((_EXTENSION + _letters(field["name"]), field["name"], _as_text))
        elif plain in ("int", "boolean"):
            out.append((_EXTENSION + _letters(field["name"]), field["name"], _as_it_is))
    return tuple(out)


def _as_text(value: Any) -> Any:
    return None if value is None else str(value)


def _as_it_is(value: Any) -> Any:
    return value


def _letters(name: str) -> str:
    """Returns a name as that of an attribute, of letters and digits alone; Debezium keeps capitals."""
    return "".join([letter for letter in name if letter in _LETTERS])


def _id_of(source: Mapping[str, Any], connector: str) -> str:
    names = _IDS.get(connector, ())
    if not all(source.get(name) is not None for name in names[:-1]) or not names:
        names = _POSITION
    return ";".join([f"{name}:{source[name]}" for name in names if source.get(name) is not None])


def _text(value: Any) -> bytes:
    return ("true" if value is True else "false" if value is False else str(value)).encode()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class CloudEventsReader:
    """Reads events, whole or with attributes in headers, as what their JSON has; the data is without its schema."""

    def read(self, data: bytes | None, headers: Headers = ()) -> Typed:
        if data is None:
            return NOTHING
        attributes = {
            name[len(_PREFIX) :]: text for name, text in headers if name.startswith(_PREFIX) and text is not None
        }
        try:
            parsed = parse_json(data, PROCESS)
            if "specversion" in attributes:
                return Typed(
                    None, {**{name: text.decode() for name, text in attributes.items()}, "data": _bare(parsed)}
                )
        except (JsonRefused, UnicodeDecodeError) as error:
            raise unreadable("the event cannot be read", error) from None
        if parsed is None:
            return NOTHING
        if not isinstance(parsed, dict):
            raise unreadable("the event is no object")
        return Typed(None, {**parsed, "data": _bare(parsed["data"])} if "data" in parsed else parsed)


def _bare(data: Any) -> Any:
    is_described = isinstance(data, dict) and data.keys() == {"schema", "payload"}
    return data["payload"] if is_described else data


FORMATS: Final = (
    Format(
        (CLOUD_EVENTS, "CloudEventsConverter", "cloud_events"),
        lambda settings: CloudEventsFormat(
            settings["cloudevents.mode"], settings["json.schemas.enable"], settings["extension.attributes.enable"]
        ),
        lambda _settings, _schemas: CloudEventsReader(),
        "Changes as CloudEvents in JSON.",
        keys=(
            setting(
                "serializer.type", "json", "How the event is written.", validator=one_of("json"), recommended=("json",)
            ),
            setting(
                "data.serializer.type", "json", "How its data is written.", validator=one_of("json"), recommended=("json",)
            ),
            setting("json.schemas.enable", True, "Whether the data is an object with schema and payload."),
            setting("extension.attributes.enable", True, "Whether the fields of the source block are attributes."),
            setting(
                "cloudevents.mode", STRUCTURED, "Whether the value is the whole event, or its data alone with the attributes in headers.",
                validator=one_of(STRUCTURED, BINARY), recommended=(STRUCTURED, BINARY),
            ),
        ),
        note="What is no change in an envelope, such as a heartbeat or a flat row, is written as JSON without a schema.",
    ),
)  # fmt: skip

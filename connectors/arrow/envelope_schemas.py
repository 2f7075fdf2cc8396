"""What a sink needs to know of a schema id: the envelope's plan and row type, the key's plan; read from the schema log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from cdcworker.connectors.arrow.decode import DecodePlan
from cdcworker.connectors.sink_errors import UNDECODABLE, UNKNOWN_SCHEMA, WIRE_FORMAT
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import OTHER_TYPE
from cdcworker.schemas.topics import unescape

WAIT_S_MAX = 30.0
"""How long a reader waits for the record of an id: it was committed before the first row, but topics are not ordered."""
RETRY_S = 0.2

SOURCE_PATHS = tuple(("source", name) for name in ("commit_lsn", "tx_index", "tx_sub", "ts_ms"))
VERSION_PATHS = (*SOURCE_PATHS, ("source", "ts_us"))


BOUNDED = frozenset(
    (
        *(f"org.apache.kafka.connect.data.{name}" for name in ("Date", "Decimal", "Time", "Timestamp")),
        *(f"io.debezium.time.{name}" for name in ("Date", "IsoTime", "MicroTime", "MicroTimestamp", "NanoTime")),
        *(f"io.debezium.time.{name}" for name in ("Time", "Timestamp", "ZonedTime")),
        "io.debezium.data.VariableScaleDecimal",
    )
)
"""Names of types of which a source has values that readers do not have."""
_ENVELOPE = frozenset(("op", "source"))


def unframed(part: str, content: bytes | None, where: Mapping[str, str | int]) -> CdcError:
    """Returns the error for a key or value that does not begin with a Confluent frame."""
    if content is not None and content.lstrip()[:1] in (b"{", b"["):
        return CdcError(WIRE_FORMAT, f"the {part}s of the topic are JSON, not Avro", where=where)
    return CdcError(UNDECODABLE, f"the {part} has no Confluent frame", where=where)


def _is_bounded(kind: Any) -> bool:
    """Tells whether values of a type are times or decimals, or hold some."""
    if isinstance(kind, list):
        return any(map(_is_bounded, kind))
    if not isinstance(kind, dict):
        return False
    inner = [kind.get("items"), kind.get("values"), *(field["type"] for field in kind.get("fields", ()))]
    return kind.get("connect.name") in BOUNDED or any(map(_is_bounded, inner))


class SchemaSource(Protocol):
    """Looks up Avro schemas: the schema log's reader, or a dict in tests."""

    def by_id(self, id: int) -> Mapping[str, Any] | None: ...

    def latest(self, subject: str) -> int | None:
        """The id of the newest version of a subject."""

    def refresh(self) -> None: ...


@dataclass(frozen=True)
class EnvelopeSchema:
    """The Avro schema of an envelope, with the plans for decoding it."""

    id: int
    schema: Mapping[str, Any]

    @cached_property
    def row(self) -> Mapping[str, Any]:
        """The row's record; `before` defines it and `after` refers to it."""
        for name in ("before", "after"):
            member = next((item for item in self.schema["fields"] if item["name"] == name), None)
            branches = member["type"] if member is not None and isinstance(member["type"], list) else []
            for branch in branches:
                if isinstance(branch, dict) and branch.get("type") == "record":
                    return branch
        raise CdcError(UNDECODABLE, "the schema is not a change envelope", where={"schema": self.id})

    @cached_property
    def plan(self) -> DecodePlan:
        return DecodePlan(self.schema, (("after",), ("op",), *SOURCE_PATHS))

    @cached_property
    def keyless_plan(self) -> DecodePlan:
        return DecodePlan(self.schema, (("after",), ("before",), ("op",), *SOURCE_PATHS))

    @cached_property
    def version_plan(self) -> DecodePlan:
        return DecodePlan(self.schema, (("after",), ("op",), *VERSION_PATHS))

    @cached_property
    def keyless_version_plan(self) -> DecodePlan:
        return DecodePlan(self.schema, (("after",), ("before",), ("op",), *VERSION_PATHS))

    @cached_property
    def place_plan(self) -> DecodePlan:
        """Returns the plan that reads only where in the source's log a change stands, and when it was made."""
        return DecodePlan(self.schema, (("source", "commit_lsn"), ("source", "ts_ms")))

    @cached_property
    def path(self) -> tuple[str, ...]:
        """Schema and table, from the namespace of the envelope."""
        space = str(self.schema.get("namespace") or str(self.schema["name"]).rpartition(".")[0])
        return tuple(unescape(part) for part in space.split(".")[-2:])

    @cached_property
    def fields(self) -> tuple[str, ...]:
        return tuple(item["name"] for item in self.row["fields"])

    @cached_property
    def kinds(self) -> Mapping[str, Any]:
        """Returns the types of the columns by their names."""
        return {item["name"]: item["type"] for item in self.row["fields"]}

    @cached_property
    def bounded(self) -> frozenset[str]:
        """The columns that a source may have brought into the range of readers: in a key they are exact."""
        return frozenset(item["name"] for item in self.row["fields"] if _is_bounded(item["type"]))


@dataclass(frozen=True)
class KeySchema:
    id: int
    schema: Mapping[str, Any]

    @cached_property
    def plan(self) -> DecodePlan:
        return DecodePlan(self.schema)

    @cached_property
    def kinds(self) -> Mapping[str, Any]:
        """Returns the types of the columns by their names."""
        return {item["name"]: item["type"] for item in self.schema["fields"]}

    @cached_property
    def fields(self) -> tuple[str, ...]:
        return tuple(self.kinds)


class EnvelopeSchemas:
    """Cache of shapes by id; waits for an id that is not there yet, then halts."""

    def __init__(
        self, source: SchemaSource, stopping: Callable[[], bool] = lambda: False, wait_s_max: float = WAIT_S_MAX
    ) -> None:
        self._source = source
        self._stopping = stopping
        self._wait_s_max = wait_s_max
        self._values: dict[int, EnvelopeSchema] = {}
        self._keys: dict[int, KeySchema] = {}

    def value(self, id: int, where: Mapping[str, str | int]) -> EnvelopeSchema:
        found = self._values.get(id)
        if found is None:
            found = EnvelopeSchema(id, self._schema(id, where))
            if not _ENVELOPE.issubset(item["name"] for item in found.schema.get("fields", ())):
                message = "the topic holds rows without Debezium's envelope"
                raise CdcError(WIRE_FORMAT, message, where={**where, "schema": id})
            self._values[id] = found
        return found

    def key(self, id: int, where: Mapping[str, str | int]) -> KeySchema:
        found = self._keys.get(id)
        if found is None:
            found = self._keys[id] = KeySchema(id, self._schema(id, where))
        return found

    def latest(self, subject: str) -> int | None:
        return self._source.latest(subject)

    def _schema(self, id: int, where: Mapping[str, str | int]) -> Mapping[str, Any]:
        deadline = time.monotonic() + self._wait_s_max
        while True:
            try:
                found = self._source.by_id(id)
            except CdcError as error:
                if error.code != OTHER_TYPE:
                    raise
                raise CdcError(WIRE_FORMAT, f"{error.message}, and not AVRO", where={**where, "schema": id}) from None
            if found is not None:
                return found
            if time.monotonic() > deadline or self._stopping():
                raise CdcError(UNKNOWN_SCHEMA, "the schema id is not in the schema log", where={**where, "schema": id})
            self._source.refresh()
            if self._source.by_id(id) is None:
                time.sleep(RETRY_S)

"""Record formats: how a connector's keys and values are serialized, with or without envelope, to which topics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from cdcworker.schemas.change import Change
from cdcworker.schemas.envelope import TRANSACTION_BLOCK
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.schemas.patterns import Pattern
from cdcworker.schemas.wire_format import AVRO, WireFormat

UNKNOWN_FIELD = declare(
    "schema.unknown_field",
    "config",
    "A field that is to be added does not exist",
    "Name op, ts_ms, ts_us, ts_ns, or a field of source or transaction.",
)

Deletes = Literal["drop", "tombstone", "rewrite"]
"""What a delete becomes without an envelope (`delete.tombstone.handling.mode` of ExtractNewRecordState)."""
CLOCKS: Final = {"ts_ms": 1_000_000, "ts_us": 1000, "ts_ns": 1}
"""The processing times of the envelope, with their units in ns."""
_OWN_FIELDS: Final = ("op", *CLOCKS)
_TRANSACTION_FIELDS: Final = tuple(field["name"] for field in TRANSACTION_BLOCK["fields"])


@dataclass(frozen=True, slots=True)
class AddedField:
    """A field of the envelope that is added to a flat row or as a header; `struct` is empty, `source` or
    `transaction`."""

    struct: str
    field: str
    name: str

    @classmethod
    def parse(cls, text: str, prefix: str) -> AddedField:
        """Parses `op`, `source.ts_ms` or `lsn:position` (with a new name). Raises ValueError for another form."""
        match = re.fullmatch(r"(?:(source|transaction)\.)?([A-Za-z_]+)(?::([A-Za-z_][A-Za-z0-9_.\-]*))?", text.strip())
        if match is None:
            raise ValueError("is no field name")
        struct, field, alias = match.groups()
        name = prefix + (alias or (f"{struct}_{field}" if struct else field))
        if not struct:
            struct = "transaction" if field in _TRANSACTION_FIELDS else "" if field in _OWN_FIELDS else "source"
        return cls(struct, field, name)

    def type_in(self, source: Mapping[str, Any]) -> Any:
        """Returns the Avro type of the field without null. Raises CdcError `schema.unknown_field`."""
        if not self.struct and self.field in _OWN_FIELDS:
            return "string" if self.field == "op" else "long"
        block = {"source": source, "transaction": TRANSACTION_BLOCK}.get(self.struct, {"fields": ()})
        for field in block["fields"]:
            if field["name"] == self.field:
                return _plain(field["type"])
        raise CdcError(UNKNOWN_FIELD, "the record has no such field", where={"field": self.field})

    def value_of(self, change: Change, clock_ns: int) -> Any:
        """Returns the value of the field in a change; `clock_ns` is the processing time."""
        if self.struct == "source":
            return change.source.get(self.field)
        if self.struct == "transaction":
            return (change.transaction or {}).get(self.field)
        return change.op if self.field == "op" else clock_ns // CLOCKS[self.field]


@dataclass(frozen=True, slots=True)
class FlatFormat:
    """Rows instead of envelopes, as Debezium's ExtractNewRecordState makes them.

    `trailing`: after the record of a delete follows the tombstone that the source would write.
    """

    deletes: Deletes = "tombstone"
    trailing: bool = False
    fields: tuple[AddedField, ...] = ()
    headers: tuple[AddedField, ...] = ()


GROUP: Final = re.compile(r"\$(?:\{([A-Za-z][A-Za-z0-9]*)\}|([0-9]))")
"""A group in a replacement: its name or its number."""


@dataclass(frozen=True, slots=True)
class RegexRoute:
    """Renames a topic that the expression matches as a whole, as Kafka Connect's RegexRouter does."""

    regex: Pattern
    replacement: str
    """With Java's `$1` and `${name}`; one digit, since a topic name has no more than nine groups."""

    def apply(self, topic: str) -> str:
        """Returns the new name of a topic, or the same one if it does not match."""
        match = self.regex.fullmatch(topic)
        if match is None:
            return topic
        return GROUP.sub(lambda found: match.group(found[1] or int(found[2])), self.replacement)


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The format of a connector's records: serialization, flat rows or envelopes, and renamed topics."""

    key: WireFormat = AVRO
    value: WireFormat = AVRO
    flat: FlatFormat | None = None
    routes: tuple[RegexRoute, ...] = ()
    shared: bool = False
    """Tells whether tables with the same columns may be routed to one topic."""


def _plain(kind: Any) -> Any:
    """Returns a type without null and without a default."""
    if isinstance(kind, list):
        kind = next(branch for branch in kind if branch != "null")
    return {key: value for key, value in kind.items() if key != "connect.default"} if isinstance(kind, dict) else kind

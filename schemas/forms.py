"""What form a connector's records have: how keys and values are written, with an envelope or without, to which topics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from cdcworker.schemas.change import Change
from cdcworker.schemas.envelope import TRANSACTION_BLOCK
from cdcworker.schemas.errors import CdcError, declare

UNKNOWN_FIELD = declare(
    "schema.unknown_field",
    "config",
    "A field that is to be added does not exist",
    "Name op, ts_ms, ts_us, ts_ns, or a field of source or transaction.",
)

Deletes = Literal["drop", "tombstone", "rewrite"]
CLOCKS: Final = {"ts_ms": 1_000_000, "ts_us": 1000, "ts_ns": 1}
_OWN_FIELDS: Final = ("op", *CLOCKS)
_TRANSACTION_FIELDS: Final = tuple(field["name"] for field in TRANSACTION_BLOCK["fields"])


@dataclass(frozen=True, slots=True)
class Wire:
    """How keys or values are written: Avro, or Connect's JSON with its schema or without."""

    json: bool = False
    schemas: bool = True
    numeric: bool = False
    """Decimals as numbers instead of base64."""


AVRO: Final = Wire()


@dataclass(frozen=True, slots=True)
class Added:
    """A field of the envelope that is added to the row, or as a header: `struct` is "", source or transaction."""

    struct: str
    field: str
    name: str

    @classmethod
    def parse(cls, text: str, prefix: str) -> Added:
        """`op`, `source.ts_ms`, `lsn:position`. ValueError for another form."""
        found = re.fullmatch(r"(?:(source|transaction)\.)?([A-Za-z_]+)(?::([A-Za-z_][A-Za-z0-9_.\-]*))?", text.strip())
        if found is None:
            raise ValueError("is no field name")
        struct, field, alias = found.groups()
        name = prefix + (alias or (f"{struct}_{field}" if struct else field))
        if not struct:
            struct = "transaction" if field in _TRANSACTION_FIELDS else "" if field in _OWN_FIELDS else "source"
        return cls(struct, field, name)

    def type_in(self, source: Mapping[str, Any]) -> Any:
        """Its Avro type without null, or CdcError."""
        if not self.struct and self.field in _OWN_FIELDS:
            return "string" if self.field == "op" else "long"
        block = {"source": source, "transaction": TRANSACTION_BLOCK}.get(self.struct, {"fields": ()})
        for field in block["fields"]:
            if field["name"] == self.field:
                return _plain(field["type"])
        raise CdcError(UNKNOWN_FIELD, "the record has no such field", where={"field": self.field})

    def value_of(self, change: Change, clock_ns: int) -> Any:
        if self.struct == "source":
            return change.source.get(self.field)
        if self.struct == "transaction":
            return (change.transaction or {}).get(self.field)
        return change.op if self.field == "op" else clock_ns // CLOCKS[self.field]


@dataclass(frozen=True, slots=True)
class Flat:
    """The row instead of the envelope, as ExtractNewRecordState makes it. `trailing`: the source's own tombstone
    follows what a deletion becomes."""

    deletes: Deletes = "tombstone"
    trailing: bool = False
    fields: tuple[Added, ...] = ()
    headers: tuple[Added, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """A topic that matches as a whole gets another name, as RegexRouter does it."""

    regex: re.Pattern[str]
    replacement: str

    def apply(self, topic: str) -> str:
        found = self.regex.fullmatch(topic)
        return found.expand(self.replacement) if found else topic


@dataclass(frozen=True, slots=True)
class Format:
    key: Wire = AVRO
    value: Wire = AVRO
    flat: Flat | None = None
    routes: tuple[Route, ...] = ()


def _plain(kind: Any) -> Any:
    """The type without null and without a default."""
    if isinstance(kind, list):
        kind = next(branch for branch in kind if branch != "null")
    return {key: value for key, value in kind.items() if key != "connect.default"} if isinstance(kind, dict) else kind

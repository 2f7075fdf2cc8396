"""Messages of a stream in binary as those of one in text: only what reads a bytea as it is may see one as it is."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final

from cdcworker.connectors.capture.config.column_masks import ColumnMasks
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlan
from cdcworker.connectors.postgres.errors import CAPTURE
from cdcworker.connectors.postgres.oversize_rows import NO_BINARY_FORM, ROW_TOO_LARGE
from cdcworker.connectors.postgres.pgoutput import Relation
from cdcworker.connectors.postgres.server.catalog import TypeNames
from cdcworker.connectors.postgres.types.binary_values import Form, bytea, form_of
from cdcworker.schemas.errors import CdcError

LARGE_BYTES: Final = 16 * 1024 * 1024
"""A bytea from here on stays as it is; as text it would take three times the memory."""
_TUPLE_AT: Final = 30
"""Of a row message: header, kind, OID."""
_BINARY, _TEXT, _NULL, _UNCHANGED = b"btnu"
_SENT: Final = frozenset(b"bt")
VALUE_BYTES_MAX: Final = 1 << 30
NO_MASKS: Final = ColumnMasks(CAPTURE)


class BinaryTranscoder:
    """Row messages with binary values as such with text values."""

    def __init__(
        self,
        types: Callable[[Iterable[tuple[int, int]]], TypeNames],
        value_bytes_max: int = 0,
        masks: ColumnMasks = NO_MASKS,
    ) -> None:
        """`value_bytes_max`: a larger value is in no record, but for one that is masked; 0: any may be."""
        self._types = types
        self._most = value_bytes_max or VALUE_BYTES_MAX
        self._masks = masks
        self._forms: dict[int, tuple[Relation, list[tuple[Form | None, int]]]] = {}

    def __call__(self, plan: TableDecodePlan, data: bytes) -> bytes:
        """CdcError with the table's name for a column whose type has no form; ValueError for bytes that are none."""
        forms, p = self._of(plan.relation), _TUPLE_AT
        parts: list[bytes | memoryview] = [data[:_TUPLE_AT]]
        while p < len(data):
            parts.append(data[p : p + 3])
            if int.from_bytes(data[p + 1 : p + 3], "big") != len(forms):
                raise ValueError("tuple: column count differs from the relation's")
            p += 3
            for i, (parse, (form, most)) in enumerate(zip(plan.parsers, forms, strict=True)):
                if parse and data[p] in _SENT and int.from_bytes(data[p + 1 : p + 5], "big") > most:
                    raise _refused(plan, i, ROW_TOO_LARGE, "a value is larger than any record may be")
                p = _column(data, p, form if parse else _nothing, parts)
                if p < 0:
                    raise _refused(plan, i, NO_BINARY_FORM, "the column's type has no binary form here")
        return b"".join(parts)

    def _of(self, relation: Relation) -> list[tuple[Form | None, int]]:
        """Returns by column its form and the most bytes that a value may have."""
        found = self._forms.get(relation.oid)
        if found is None or found[0] != relation:
            known = self._types((column.type_oid, column.typmod) for column in relation.columns).types
            found = self._forms[relation.oid] = (
                relation,
                [
                    (form_of(column.type_oid, known), self._most_of(relation, column.name))
                    for column in relation.columns
                ],
            )
        return found[1]

    def _most_of(self, relation: Relation, column: str) -> int:
        """Returns the most bytes of a column's value. Of a masked value the record holds a part, stars or a digest."""
        return VALUE_BYTES_MAX if self._masks.rule(relation.schema, relation.table, column) else self._most


def _nothing(_: bytes) -> bytes:
    """Stands for the value of a column that is left out."""
    return b""


def _column(data: bytes, p: int, form: Form | None, parts: list[bytes | memoryview]) -> int:
    """One value of a tuple: appended, and where it ends; -1 where its form is not known."""
    kind = data[p]
    if kind in (_NULL, _UNCHANGED):
        parts.append(data[p : p + 1])
        return p + 1
    start = p + 5
    end = start + int.from_bytes(data[p + 1 : start], "big")
    if kind not in _SENT or end > len(data):
        raise ValueError("tuple: unknown kind of value, or cut short")
    if kind == _TEXT or (form is bytea and end - start >= LARGE_BYTES):
        # It may be large: in the message that is made of them is its one copy.
        parts.append(memoryview(data)[p:end])
        return end
    if form is None:
        return -1
    try:
        text = form(data[start:end])
    except (struct.error, KeyError) as exc:
        raise ValueError("not the binary form of its type") from exc
    parts += (b"t", len(text).to_bytes(4, "big"), text)
    return end


def _refused(plan: TableDecodePlan, index: int, code: str, text: str) -> CdcError:
    where: dict[str, str | int] = {"table": ".".join(plan.table.path), "column": plan.relation.columns[index].name}
    return CdcError(code, text, where=where)

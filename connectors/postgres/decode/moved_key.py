"""The new key of an updated row, as the texts by which the row is read again."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.postgres import pgoutput
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlan

_NEW: Final = ord("N")
"""Stands before a new tuple without an old one."""


def new_key_texts(plan: TableDecodePlan, data: bytes) -> list[str] | None:
    """The new key of an update's row, as text. What was not sent of it stands in the old tuple; None: it does not."""
    names = [column.name for column in plan.relation.columns]
    old: list[bytes | None] = [None] * len(names)
    p = 31
    if data[30] != _NEW:
        old, p = pgoutput.read_texts(data, p, len(names))
        p += 1
    new, _ = pgoutput.read_texts(data, p, len(names))
    at = [names.index(column.name) for column in plan.table.key_columns]
    texts = [new[i] if new[i] is not None else old[i] for i in at]
    known = [text.decode() for text in texts if text is not None]
    return known if len(known) == len(at) else None

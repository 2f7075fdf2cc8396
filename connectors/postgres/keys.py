"""`message.key.columns`: records under other columns than those of the primary key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdcworker.connectors.postgres.errors import MESSAGE_KEY
from cdcworker.schemas.change import Table
from cdcworker.schemas.errors import CdcError

_ITEM = re.compile(r"\s*(.+?)\s*:\s*([^:]+?)\s*")


@dataclass(frozen=True, slots=True)
class MessageKeys:
    """(pattern of full table names, columns) in the order in which they are tried."""

    items: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def parse(cls, text: str) -> MessageKeys:
        """`schema.table:column,column;…`, as Debezium's. ValueError for another form."""
        items = []
        for part in filter(str.strip, text.split(";")):
            found = _ITEM.fullmatch(part)
            columns = tuple(name.strip() for name in found.group(2).split(",")) if found else ()
            if found is None or not all(columns):
                raise ValueError(f"expects schema.table:column,…;…, not {part.strip()}")
            try:
                re.compile(found.group(1))
            except re.error as exc:
                raise ValueError(f"is not a regular expression: {exc.msg}") from exc
            items.append((found.group(1), columns))
        return cls(tuple(items))

    def columns_of(self, schema: str, table: str) -> tuple[str, ...]:
        name = f"{schema}.{table}"
        return next((columns for pattern, columns in self.items if re.fullmatch(pattern, name, re.I)), ())

    def rekeyed(self, table: Table, logged: Sequence[str]) -> Table:
        """The table under its message key; `logged` are the columns that the server sends of an old row."""
        wanted = self.columns_of(*table.path)
        names = [column.name for column in table.columns]
        if not wanted:
            return table
        where = {"table": ".".join(table.path)}
        missing = [name for name in wanted if name not in names]
        if missing:
            raise CdcError(MESSAGE_KEY, "the table has no such column", where={**where, "column": missing[0]})
        unlogged = [name for name in wanted if name not in logged]
        if unlogged:
            text = "a deletion would not hold the column: REPLICA IDENTITY FULL is needed"
            raise CdcError(MESSAGE_KEY, text, where={**where, "column": unlogged[0]})
        return replace(table, key=tuple(names.index(name) for name in wanted))


def message_keys(value: str) -> str | None:
    """The validator of the key."""
    try:
        MessageKeys.parse(value)
    except ValueError as exc:
        return str(exc)
    return None

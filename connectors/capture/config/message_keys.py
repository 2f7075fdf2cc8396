"""`message.key.columns`: records under other columns than those of the primary key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdcworker.connectors.capture.errors import CaptureErrors
from cdcworker.schemas import patterns
from cdcworker.schemas.change import Table
from cdcworker.schemas.errors import CdcError


@dataclass(frozen=True, slots=True)
class MessageKeys:
    """(pattern of full table names, columns) in the order in which they are tried."""

    items: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def parse(cls, text: str) -> MessageKeys:
        """`schema.table:column,column;…`, as Debezium's. ValueError for another form."""
        items = []
        for part in filter(str.strip, text.split(";")):
            pattern, _, listed = part.rpartition(":")
            columns = tuple(name.strip() for name in listed.split(","))
            if not pattern.strip() or not all(columns):
                raise ValueError(f"expects schema.table:column,…;…, not {part.strip()}")
            items.append((pattern.strip(), columns))
        if problem := patterns.list_problem([pattern for pattern, _ in items]):
            raise ValueError(problem)
        return cls(tuple(items))

    def columns_of(self, schema: str, table: str) -> tuple[str, ...]:
        name = f"{schema}.{table}"
        return next((columns for text, columns in self.items if patterns.matches(text, name, ignore_case=True)), ())

    def rekeyed(self, table: Table, logged: Sequence[str], whole_rows: str, errors: CaptureErrors) -> Table:
        """The table under its message key. `logged` are the columns that the server sends of an old row, `whole_rows` is the
        setting under which it sends them all. CdcError when the key cannot be that."""
        wanted = self.columns_of(*table.path)
        names = [column.name for column in table.columns]
        if not wanted:
            return table
        where = {"table": ".".join(table.path)}
        missing = [name for name in wanted if name not in names]
        if missing:
            raise CdcError(errors.message_key, "the table has no such column", where={**where, "column": missing[0]})
        unlogged = [name for name in wanted if name not in logged]
        if unlogged:
            text = f"a deletion would not hold the column: {whole_rows} is needed"
            raise CdcError(errors.message_key, text, where={**where, "column": unlogged[0]})
        return replace(table, key=tuple(names.index(name) for name in wanted))


def message_keys(value: str) -> str | None:
    """The validator of the key."""
    try:
        MessageKeys.parse(value)
    except ValueError as exc:
        return str(exc)
    return None

"""Tables of a PostgreSQL warehouse that do not fit: what the server refuses to change of them is said of the table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from cdcworker.connectors.sink_errors import SCHEMA_REFUSED
from cdcworker.connectors.warehouses.postgres import statements
from cdcworker.schemas.errors import CdcError

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

_REFUSED: Final = {
    "0A000": "something of the warehouse's, a view, say, needs the column",
    "2BP01": "something of the warehouse's, a view, say, needs the column",
    "42P16": "the column is one of a partition's key, or of a table that this one inherits from",
    "428C9": "the column is a generated one",
    "42804": "the column's default, or a constraint, does not fit the new type",
    "42809": "the table is a partition, or one of a type",
    "54011": "the table has as many columns as a table can have",
}
"""By SQLSTATE of an ALTER TABLE what it says of the table. Nobody but the table's owner can mend any of it."""

STALE: Final = ("22", "23", "42", "55000")
"""What SQLSTATEs begin with that a table gives cause for which is other than it was: they say it of values, constraints,
names, and of a relation's kind."""

_MISFIT = """select a.attname, a.attname::text = any(%(written)s) from pg_attribute a join pg_type y on y.oid = a.atttypid
    where a.attrelid = to_regclass(%(table)s) and a.attnum > 0 and not a.attisdropped
      and case when a.attname::text = any(%(written)s) then a.attgenerated <> '' or a.attidentity = 'a'
          else a.attnotnull and not a.atthasdef and a.attidentity = '' and y.typdefault is null end
      and not (a.attname::text <> all(%(written)s) and exists (select from pg_trigger t
        where t.tgrelid = a.attrelid and t.tgtype & 7 = 7 and t.tgenabled <> 'D'))
    order by a.attnum limit 1"""
"""A column that a row to come would fail at. One that is not written may be filled by a trigger before the row (its bits:
ROW 1, BEFORE 2, INSERT 4)."""


@contextlib.contextmanager
def altering(target: statements.TargetTable, columns: Sequence[str]) -> Iterator[None]:
    """Around what alters a table. CdcError SCHEMA_REFUSED where the server does not let it."""
    import psycopg

    try:
        yield
    except psycopg.Error as exc:
        text = _REFUSED.get(exc.sqlstate or "")
        if text is None:
            raise
        where = {"table": target.plain_name, "column": ",".join(columns)}
        raise CdcError(SCHEMA_REFUSED, f"{text} (SQLSTATE {exc.sqlstate})", where=where) from exc


def check(connection: Connection, target: statements.TargetTable) -> None:
    """CdcError SCHEMA_REFUSED where the table takes no rows of the sink's, whatever is in them."""
    written = [*target.names, *(column.name for column in target.own), target.position]
    found = connection.execute(_MISFIT, {"table": target.name, "written": written}).fetchone()
    if found is None:
        return
    text = "the column may not be null, has no default, and the source has none of its name"
    if found[1]:
        text = "the column is generated always: no value can be written"
    raise CdcError(SCHEMA_REFUSED, text, where={"table": target.plain_name, "column": str(found[0])})


def is_table(place: tuple[str, str], kind: str) -> None:
    """CdcError SCHEMA_REFUSED where a relation of another `kind`, as PostgreSQL names it by a letter, has the table's name."""
    if kind not in ("r", "p"):
        text = "what has the table's name is a view, or anything else, but no table"
        raise CdcError(SCHEMA_REFUSED, text, where={"table": ".".join(place)})

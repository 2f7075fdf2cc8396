"""A look at what changes, of which nothing stays in the database: a temporary slot, and a publication that is dropped."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Final

import psycopg
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.source import WatchedTask
from cdcworker.connectors.capture.config.table_names import TableName
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.errors import TABLE_KEYLESS, TABLE_MISSING, translate
from cdcworker.connectors.postgres.server.publication_guardian import PREFIX, guarded
from cdcworker.connectors.postgres.server.slot import candidates
from cdcworker.connectors.postgres.source.task import PostgresTask
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.transport.connection import APPLICATION, connect
from cdcworker.schemas.errors import CdcError

PUBLICATION_KEY: Final = "publication.name"
_TABLES_KEY: Final = "table.include.list"
_LOOKING: Final = {
    # A temporary slot is gone with its connection: whatever would open the stream again is out.
    "transaction.streaming": "false",
    "binary.columns": "never",
    # A table that came later without a replica identity would refuse updates once it is published.
    "table.discovery.interval.ms": "0",
    "slot.creation.timeout.ms": "10000",
}
_REFUSES: Final = (
    "it has no replica identity, so that the server would refuse updates and deletes while it is published"
)
_KEYLESS: Final = """
select c.oid from pg_class c where c.oid = any(%s) and c.relreplident <> 'f' and not exists (
    select from pg_index i where i.indrelid = c.oid and i.indisvalid and i.indimmediate
    and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident else false end)
"""


@contextmanager
def watched(config: Mapping[str, str], context: TaskContext, *, rows: bool = False) -> Iterator[WatchedTask]:
    """`config`: where `publication.name` is given that publication is read, as it is; else one is made for this time, of the tables
    that have a replica identity. `rows`: with the rows that the tables have now."""
    name = f"{PREFIX}{secrets.token_hex(4)}"
    is_own = PUBLICATION_KEY not in config
    looking = {
        PUBLICATION_KEY: name, **config, **_LOOKING, "slot.name": name, "snapshot.mode": "initial" if rows else "no_data",
        "publication.autocreate.mode": "filtered" if is_own else "disabled",
    }  # fmt: skip
    left_out: list[TableName] = []
    if is_own:
        chosen, left_out = _tables(looking)
        looking[_TABLES_KEY] = ",".join(map(_pattern, chosen))
    with guarded(looking) if is_own else nullcontext():
        task = PostgresTask(replace(parse(looking), is_temporary=True), context)
        try:
            task.open(None)
            yield WatchedTask(task, {f"{table[1]}.{table[2]}": _REFUSES for table in left_out})
        finally:
            task.close()


def _tables(config: Mapping[str, str]) -> tuple[Sequence[TableName], list[TableName]]:
    """Returns the tables that may be published, and those that may not."""
    settings = parse(config)
    try:
        with connect(settings, APPLICATION) as connection:
            tables = candidates(connection, settings)
            keyless = _keyless(connection, tables)
    except psycopg.Error as error:
        raise translate(error) from error
    fit = [table for table in tables if table[0] not in keyless]
    if not tables:
        raise CdcError(TABLE_MISSING, "no table is chosen", where={"key": _TABLES_KEY})
    if not fit:
        raise CdcError(TABLE_KEYLESS, "none of the tables has a replica identity", where={"tables": len(tables)})
    return fit, [table for table in tables if table[0] in keyless]


def _keyless(connection: AdminConnection, tables: Sequence[TableName]) -> set[int]:
    return {row[0] for row in connection.execute(_KEYLESS, ([table[0] for table in tables],)).fetchall()}


def _pattern(table: TableName) -> str:
    """Returns what means this table alone, in a list that is divided at commas, and whose items lose spaces at their ends and are
    compared without regard to case."""
    return f"(?-i:{re.escape(f'{table[1]}.{table[2]}')})".replace(",", r"\x2c")

"""Columns that the source drops, in PostgreSQL: see `dropped`."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from cdcworker.connectors.api import TableBatch
from cdcworker.connectors.spark import dropped, pgfits, pgsql
from cdcworker.connectors.spark.columns import Naming

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

log = logging.getLogger(__name__)

_APPLIED = """select applied from _cdcworker.ledger where sink = %s and topic = %s and applied is not null
    order by applied desc limit 1"""


class Settled(NamedTuple):
    """`deleted`: columns that were. `late`: those of a batch in an older shape, which the table has no more. `settled`:
    whether another batch in the same shape finds the same."""

    deleted: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    settled: bool = True


@dataclass(slots=True)
class Known:
    """`newest`: by topic the highest position that its rows had when they were looked at. What has come since is in the ledger."""

    sink: str
    newest: dict[str, bytes] = field(default_factory=dict)


def settled(connection: Connection, target: pgsql.Target, batch: TableBatch, planned: Naming, known: Known) -> Settled:
    """In the transaction of the batch's rows."""
    if not planned.gone and not planned.added:
        return Settled()
    at = dropped.position(batch)
    found = connection.execute(_APPLIED, (known.sink, batch.table)).fetchone()
    if found is not None and at <= bytes(found[0]):
        late = tuple(name for name in planned.added if name not in target.key)
        return Settled(late=late, settled=not planned.gone and not late)
    if not planned.gone:
        return Settled()
    if batch.table not in known.newest:
        known.newest[batch.table] = _newest(connection, target, planned)
    if at <= known.newest[batch.table]:
        # Offsets that were reset: the topic is read again from long before.
        return Settled(settled=False)
    _delete(connection, target, batch.table, planned.gone, known.sink)
    del known.newest[batch.table]
    return Settled(planned.gone)


def _newest(connection: Connection, target: pgsql.Target, planned: Naming) -> bytes:
    """Of the rows that are there; all are looked at."""
    names = [old for old, new in planned.names.items() if new == target.position]
    if not names:
        return b""
    found = connection.execute(pgsql.newest(target, names[0])).fetchone()
    return b"" if found is None else bytes(found[0])


def _delete(connection: Connection, target: pgsql.Target, topic: str, names: tuple[str, ...], sink: str) -> None:
    with pgfits.altering(target, names):
        connection.execute(pgsql.drop_columns(target, names))
    # Rows that have left their key wait without it too: another column may have its name later.
    connection.execute(
        "update _cdcworker.tombstone set row = row - %s::text[] where sink = %s and topic = %s and row is not null",
        (list(names), sink, topic),
    )
    table = f"{target.schema}.{target.table}"
    log.info("columns that the source dropped go table=%s columns=%s", table, ",".join(names))

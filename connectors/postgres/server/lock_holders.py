"""Who holds the locks that a table is waited for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from cdcworker.connectors.postgres import errors as e
from cdcworker.connectors.postgres.server.publication_members import TREE
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.types.text_values import SESSION_OPTIONS
from cdcworker.schemas.errors import CdcError

LOCK_MS: Final = 2_000
"""How long a start waits for a table; whoever wants the table meanwhile waits too."""
SHOWN: Final = 5

# Also who waits for a lock of this mode: nobody comes before it.
_HOLDERS: Final = f"""
with recursive {TREE}
select coalesce('backend ' || l.pid, 'a prepared transaction'), c.oid::regclass::text
from tree join pg_locks l on l.relation = tree.oid and l.locktype = 'relation'
join pg_database d on d.oid = l.database and d.datname = current_database() join pg_class c on c.oid = tree.oid
where l.pid is distinct from pg_backend_pid() and l.mode = any(%(modes)s)
order by not l.granted, 1, 2 limit {SHOWN + 1}
"""
READING: Final = ("AccessExclusiveLock",)
"""What keeps a reader out."""
PUBLISHING: Final = (*READING, "ExclusiveLock", "ShareRowExclusiveLock", "ShareLock", "ShareUpdateExclusiveLock")
"""What keeps a table out of a publication."""
ANY: Final = (*PUBLISHING, "RowExclusiveLock", "RowShareLock", "AccessShareLock")
"""What keeps a table from being altered."""


@contextmanager
def limited(connection: AdminConnection, lock_ms: int) -> Iterator[None]:
    """Statements in here wait as long for a lock; outside of a transaction."""
    connection.execute("select set_config('lock_timeout', %s, false)", (str(lock_ms),))
    try:
        yield
    finally:
        if not connection.closed:
            connection.execute("select set_config('lock_timeout', %s, false)", (SESSION_OPTIONS["lock_timeout"],))


def holders(connection: AdminConnection, oids: Sequence[int], modes: Sequence[str] = READING) -> str:
    """Returns in words who holds locks on the tables and their partitions; empty when they are free by now."""
    rows = connection.execute(_HOLDERS.encode(), {"oids": list(oids), "modes": list(modes)}).fetchall()
    by: dict[str, list[str]] = {}
    for holder, table in rows[:SHOWN]:
        by.setdefault(holder, []).append(table)
    more = " and others" if len(rows) > SHOWN else ""
    return ", ".join(f"{holder} ({', '.join(tables)})" for holder, tables in by.items()) + more


def refusal(connection: AdminConnection, oids: Sequence[int], modes: Sequence[str], what: str) -> CdcError:
    """Returns the error for what was given up because a lock was in the way."""
    found = holders(connection, oids, modes) or "somebody who has let go by now"
    return CdcError(e.TABLE_LOCKED, f"{what} waits for a lock of {found}")

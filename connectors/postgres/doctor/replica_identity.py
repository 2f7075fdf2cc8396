"""`replica.identity.autoset.values`: what the server writes of old rows, set by table when the source starts."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg
from cdcworker.connectors.capture.config.table_names import TableName
from cdcworker.connectors.checks import CheckResult, DoctorCheck, Repair, ok
from cdcworker.connectors.postgres import errors as e
from cdcworker.connectors.postgres.config.replica_identity_key import KEY, ReplicaIdentities
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.doctor.examined_server import ExaminedServer, listed
from cdcworker.connectors.postgres.server import fixes, lock_holders
from cdcworker.connectors.postgres.server.publication_members import TREE
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

_KINDS = {"d": "DEFAULT", "f": "FULL", "n": "NOTHING"}

# A partitioned table's rows are logged as its partitions say.
_FOUND = f"""
with recursive {TREE}
select c.oid, n.nspname, c.relname, c.relreplident::text, pg_has_role(c.relowner, 'usage'), c.relkind = 'p',
       (select i.relname from pg_index x join pg_class i on i.oid = x.indexrelid
         where x.indrelid = c.oid and x.indisreplident),
       (select array_agg(i.relname::text) from pg_index x join pg_class i on i.oid = x.indexrelid
         where x.indrelid = c.oid and x.indisunique and x.indisvalid and x.indimmediate and x.indpred is null),
       tree.root
from tree join pg_class c on c.oid = tree.oid join pg_namespace n on n.oid = c.relnamespace
order by 2, 3
"""


@dataclass(frozen=True, slots=True)
class IdentityDifference:
    """A table that has another identity than is wanted; `problem`: why it cannot be set."""

    oid: int
    schema: str
    table: str
    present: str
    wanted: str
    problem: str = ""

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def statement(self) -> str:
        kind, _, index = self.wanted.partition(" ")
        how = f"USING INDEX {fixes.ident(index)}" if index else kind
        return f"ALTER TABLE {fixes.ident(self.schema, self.table)} REPLICA IDENTITY {how}"


def differences(
    connection: AdminConnection, wanted: ReplicaIdentities, tables: Sequence[TableName]
) -> list[IdentityDifference]:
    """Returns the captured tables and partitions whose identity differs from what is configured."""
    chosen = {oid: value for oid, schema, table in tables if (value := wanted.of(schema, table))}
    out = []
    for row in connection.execute(_FOUND.encode(), {"oids": list(chosen)}).fetchall() if chosen else ():
        oid, schema, table, kind, is_ours, is_parent, own_index, indexes, root = row
        present = _KINDS.get(kind, f"INDEX {own_index}")
        value = chosen[root]
        if present == value:
            continue
        index = value.partition(" ")[2]
        problem = ""
        if index and (is_parent or oid != root):
            problem = "the index of a partitioned table is set for each partition"
        elif index and index not in (indexes or ()):
            problem = f"it has no unique index {index} over whole, immediate columns"
        elif not is_ours:
            problem = "the role does not own it"
        out.append(IdentityDifference(oid, schema, table, present, value, problem))
    return out


def settle(
    connection: AdminConnection,
    wanted: ReplicaIdentities,
    tables: Sequence[TableName],
    lock_ms: int = lock_holders.LOCK_MS,
) -> list[str]:
    """Sets what differs, table by table; the names of those that were set."""
    done = []
    for item in differences(connection, wanted, tables):
        if item.problem:
            where = {"table": item.name, "wanted": item.wanted}
            raise CdcError(e.REPLICA_IDENTITY, item.problem, where=where)
        try:
            with lock_holders.limited(connection, lock_ms):
                connection.execute(item.statement.encode())
        except psycopg.errors.LockNotAvailable as exc:
            raise lock_holders.refusal(
                connection, [item.oid], lock_holders.ANY, f"replica identity of {item.name}"
            ) from exc
        log.info("replica identity set table=%s from=%s to=%s", item.name, item.present, item.wanted)
        done.append(item.name)
    return done


def set_configured(
    connection: AdminConnection,
    settings: PostgresSettings,
    tables: Sequence[TableName],
    lock_ms: int = lock_holders.LOCK_MS,
) -> int:
    """Sets the replica identity that is configured for tables that the source begins to read; returns how many were
    set. CdcError when one cannot be set."""
    wanted = ReplicaIdentities.parse(settings.raw[KEY])
    return len(settle(connection, wanted, tables, lock_ms)) if wanted.items else 0


def _examined(examined: ExaminedServer) -> Iterator[CheckResult]:
    wanted = ReplicaIdentities.parse(examined.settings.raw[KEY])
    if not wanted.items:
        yield ok("nothing is asked for")
        return
    found = differences(examined.connection, wanted, examined.tables)
    for item in found:
        if item.problem:
            text = f"{item.name} cannot be given REPLICA IDENTITY {item.wanted}: {item.problem}"
            fix = None if "index" in item.problem else Repair((item.statement,), "By the table's owner.")
            yield CheckResult("error", item.present, text, e.REPLICA_IDENTITY, KEY, fix=fix)
    others = [item for item in found if not item.problem]
    if others:
        names = listed([f"{item.name} ({item.present} to {item.wanted})" for item in others])
        fix = Repair(tuple(item.statement for item in others))
        yield CheckResult(
            "note", f"{len(others)} tables differ", f"the connector sets at its start: {names}", key=KEY, fix=fix
        )
    if not found:
        yield ok("as wanted")


CHECKS = (DoctorCheck("tables.identity", "What is not in the log of an old row cannot be delivered.", _examined),)

"""Publication and replication slot: created once, checked at every start, never replaced in silence."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg
from cdcworker.connectors.capture.config.table_names import TableName
from cdcworker.connectors.postgres import errors as e
from cdcworker.connectors.postgres.config.settings import PostgresSettings
from cdcworker.connectors.postgres.pgoutput import OWN_PREFIX, format_lsn, parse_lsn
from cdcworker.connectors.postgres.position import StoredPosition
from cdcworker.connectors.postgres.server import failover_slots
from cdcworker.connectors.postgres.server.publication_members import members
from cdcworker.connectors.postgres.server.replication_slot import ReplicationSlot
from cdcworker.connectors.postgres.transport import server_functions
from cdcworker.connectors.postgres.transport.admin_connection import AdminConnection
from cdcworker.connectors.postgres.transport.libpq_stream import ReplicationStream, SystemIdentity, quote
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.failpoints import hit
from psycopg import sql

log = logging.getLogger(__name__)

TAKEOVER_STEP_S = 0.01
TAKEOVER_S_MAX = 20.0
RELEASE_S_MAX = 3.0
"""How long an earlier walsender may take to free the slot after it was told to end."""

_SLOT = """
select slot_name, plugin, slot_type, database, active_pid, restart_lsn::text, confirmed_flush_lsn::text,
       wal_status, safe_wal_size, to_jsonb(s) ->> 'invalidation_reason', (to_jsonb(s) ->> 'failover')::bool, two_phase
from pg_replication_slots s where slot_name = %s
"""


def find_slot(connection: AdminConnection, name: str) -> ReplicationSlot | None:
    row = connection.execute(_SLOT, (name,)).fetchone()
    if row is None:
        return None
    restart, confirmed = (parse_lsn(text) if text else None for text in row[5:7])
    return ReplicationSlot(row[0], row[1], row[2], row[3], row[4], restart, confirmed, *row[7:])


def when_released(connection: AdminConnection, name: str) -> ReplicationSlot | None:
    """Returns the slot, which is looked at until nobody reads it, at most for `RELEASE_S_MAX`: the server notices the end of a reader
    somewhat later than the reader."""
    deadline = time.monotonic() + RELEASE_S_MAX
    while (slot := find_slot(connection, name)) is not None and slot.active_pid is not None:
        if time.monotonic() > deadline:
            break
        time.sleep(TAKEOVER_STEP_S)
    return slot


def of_other_splits(connection: AdminConnection, settings: PostgresSettings) -> list[str]:
    """Returns the slots that the connector has created for another slot.count. Slots of the present count would deliver again what
    was read through those."""
    rows = connection.execute(
        "select slot_name::text from pg_replication_slots where database = current_database()"
        " and slot_name ~ %s and slot_name <> all(%s) order by 1",
        (f"^{settings.raw['slot.name']}(_[0-9]+of[0-9]+)?$", settings.slots),
    ).fetchall()
    return [row[0] for row in rows]


def require_split(connection: AdminConnection, settings: PostgresSettings) -> None:
    """Raises CdcError `postgres.slots_changed` while slots of another slot.count exist."""
    others = of_other_splits(connection, settings)
    if others:
        where = {"slot": settings.slot, "others": ", ".join(others[:5])}
        raise CdcError(e.SLOTS_CHANGED, f"{len(others)} slots of another slot.count exist", where=where)


def check_kind(slot: ReplicationSlot, dbname: str) -> None:
    if slot.kind != "logical" or slot.plugin != "pgoutput":
        raise CdcError(e.SLOT_UNFIT, f"the slot is {slot.kind} with plugin {slot.plugin}", where={"slot": slot.name})
    if slot.two_phase:
        # What is only prepared may still be rolled back.
        raise CdcError(e.SLOT_UNFIT, "the slot decodes prepared transactions", where={"slot": slot.name})
    if slot.database != dbname:
        raise CdcError(e.SLOT_UNFIT, f"the slot belongs to database {slot.database}", where={"slot": slot.name})


def verify_server(position: StoredPosition, identity: SystemIdentity, settings: PostgresSettings) -> None:
    if position.system_id != identity.system_id:
        where: dict[str, str | int] = {"slot": settings.slot, "safe_lsn": format_lsn(position.safe_lsn)}
        raise CdcError(e.OTHER_SERVER, "the stored position belongs to another server", where=where)


def verify(
    position: StoredPosition, identity: SystemIdentity, slot: ReplicationSlot | None, settings: PostgresSettings
) -> None:
    """Raises CdcError unless the stored position, the server and the slot belong together; every violation has a code of its own."""
    verify_server(position, identity, settings)
    where: dict[str, str | int] = {"slot": settings.slot, "safe_lsn": format_lsn(position.safe_lsn)}
    if position.slot != settings.slot:
        where["stored_slot"] = position.slot
        raise CdcError(e.SLOT_MISSING, "the stored position belongs to another slot name", where=where)
    if slot is None:
        raise CdcError(e.SLOT_MISSING, "the replication slot does not exist", where=where)
    check_kind(slot, settings.dbname)
    if slot.wal_status == "lost" or slot.confirmed_lsn is None or slot.restart_lsn is None:
        if slot.reason:
            where["reason"] = slot.reason
        raise CdcError(e.SLOT_LOST, "the server has removed WAL that the slot still needed", where=where)
    if slot.confirmed_lsn > position.safe_lsn:
        where["confirmed_lsn"] = format_lsn(slot.confirmed_lsn)
        if slot.restart_lsn >= position.safe_lsn:
            raise CdcError(e.SLOT_RECREATED, "the slot starts after the stored position", where=where)
        raise CdcError(e.SLOT_ADVANCED, "the slot was advanced past the stored position", where=where)


def verify_timeline(position: StoredPosition, identity: SystemIdentity, history: Callable[[int], str]) -> None:
    """Checks after a failover that the new timeline has branched off at or after the stored position."""
    if identity.timeline == position.timeline:
        return
    where: dict[str, str | int] = {"timeline": identity.timeline, "stored_timeline": position.timeline}
    if identity.timeline < position.timeline:
        raise CdcError(e.DIVERGED, "the server is on an older timeline than the stored position", where=where)
    for line in history(identity.timeline).splitlines():
        parts = line.split("#")[0].split()
        if len(parts) >= 2 and parts[0] == str(position.timeline):
            if parse_lsn(parts[1]) < position.safe_lsn:
                where["switch_lsn"] = parts[1]
                raise CdcError(e.DIVERGED, "the timeline branched off before the stored position", where=where)
            return
    raise CdcError(e.DIVERGED, "the timeline's history does not hold the stored position's timeline", where=where)


def take_over(connection: AdminConnection, name: str, stopping: Callable[[], bool]) -> None:
    """Ends the walsender by which an earlier process of this task reads the slot. Readers of other programs, connectors and clusters
    are left alone: CdcError `postgres.slot_in_use`."""
    deadline = time.monotonic() + TAKEOVER_S_MAX
    ended: set[int] = set()
    while not stopping():
        row = connection.execute(
            # Our name as the server keeps it: cut to its length, and without what it does not take.
            "select s.active_pid, coalesce(a.application_name, current_setting('application_name'))"
            " = current_setting('application_name') from pg_replication_slots s"
            " left join pg_stat_activity a on a.pid = s.active_pid where s.slot_name = %s",
            (name,),
        ).fetchone()
        if row is None or row[0] is None:
            return
        pid, is_ours = row
        where: dict[str, str | int] = {"slot": name, "pid": pid}
        if not is_ours:
            raise CdcError(e.SLOT_IN_USE, "another program, connector or cluster reads the slot", where=where)
        if pid not in ended:
            log.info("ending the walsender of an earlier run slot=%s pid=%d", name, pid)
            connection.execute("select pg_terminate_backend(%s)", (pid,))
            ended.add(pid)
        if time.monotonic() > deadline:
            raise CdcError(e.SLOT_BUSY, "the earlier walsender does not end", where=where)
        time.sleep(TAKEOVER_STEP_S)


def create(connection: AdminConnection, settings: PostgresSettings) -> int:
    """Creates the slot and returns its consistent point. Waits for older transactions, within slot.creation.timeout.ms."""
    timeout_ms = settings.raw["slot.creation.timeout.ms"]
    connection.execute("select set_config('statement_timeout', %s, false)", (str(timeout_ms),))
    try:
        lsn = _create(connection, settings, kept=failover_slots.of_new(connection, settings))
    except psycopg.errors.QueryCanceled as exc:
        if server_functions.is_standby(connection):
            text = "the primary has not logged its running transactions"
            raise CdcError(e.SLOT_CREATION_BLOCKED, text, hint=server_functions.LOG_HINT) from exc
        raise _blocked(connection) from exc
    finally:
        connection.execute("select set_config('statement_timeout', '0', false)")
    log.info("slot created slot=%s consistent_point=%s", settings.slot, lsn)
    return parse_lsn(lsn)


def create_temporary(stream: ReplicationStream, connection: AdminConnection, settings: PostgresSettings) -> int:
    """Creates a slot that ends with the stream's connection, and returns its consistent point. Waits for older transactions, each
    within slot.creation.timeout.ms."""
    # A replication command has no time limit of its own; what it waits for are locks.
    stream.command(f"SET lock_timeout = {settings.raw['slot.creation.timeout.ms']:d}")
    try:
        made = stream.command(
            f"CREATE_REPLICATION_SLOT {quote(settings.slot)} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT"
        )
    except CdcError as error:
        if error.code != e.TABLE_LOCKED:
            raise
        raise _blocked(connection) from error
    lsn = made[0][1]
    assert lsn
    log.info("temporary slot created slot=%s consistent_point=%s", settings.slot, lsn)
    return parse_lsn(lsn)


def _blocked(connection: AdminConnection) -> CdcError:
    blockers = ", ".join(str(pid) for pid in old_writers(connection)) or "unknown"
    return CdcError(e.SLOT_CREATION_BLOCKED, f"older transactions are open in backends {blockers}")


def _create(connection: AdminConnection, settings: PostgresSettings, *, kept: bool) -> str:
    """`kept`: as a failover slot, unless the server refuses one and slot.failover is not set to true."""
    args: list[Any] = [settings.slot, "pgoutput", False, False, *([True] if kept else ())]
    marks = ", ".join(["%s"] * len(args))
    statement = f"select lsn::text from pg_create_logical_replication_slot({marks})"
    try:
        row = connection.execute(statement, args).fetchone()
    except psycopg.Error as exc:
        final = isinstance(exc, psycopg.errors.QueryCanceled | psycopg.errors.InsufficientPrivilege)
        if final or not kept or settings.raw[failover_slots.KEY] or connection.closed:
            raise
        lsn = _create(connection, settings, kept=False)
        log.warning(
            "slot made without failover, which the server refuses slot=%s error=%s", settings.slot, e.translate(exc)
        )
        return lsn
    assert row
    return str(row[0])


def old_writers(connection: AdminConnection) -> list[int]:
    """Backends with the oldest writing transactions: what a new slot or a snapshot waits for."""
    rows = connection.execute(
        "select pid from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid()"
        " order by xact_start limit 5"
    ).fetchall()
    return [row[0] for row in rows]


def mark(connection: AdminConnection, settings: PostgresSettings, connector: str) -> tuple[int, int]:
    """Writes a mark into the log that names the slot's owner, and returns its LSN and its transaction's id.

    Every transaction that began to write before has a smaller id, which makes the id a barrier for snapshots. By the
    marks that a stored position knows another log is recognised (`position_checks`).
    """
    content = json.dumps({"slot": settings.slot, "connector": connector, "prefix": settings.prefix})
    row = connection.execute(server_functions.MARK, (OWN_PREFIX, content)).fetchone()
    assert row
    return parse_lsn(row[0]), row[1]


def oldest(connection: AdminConnection) -> int:
    """Returns the id below which all transactions have ended."""
    row = connection.execute(server_functions.OLDEST).fetchone()
    assert row
    return int(row[0])


def drop(connection: AdminConnection, name: str) -> None:
    connection.execute("select pg_drop_replication_slot(%s)", (name,))


# -- publication ------------------------------------------------------------------------------------------------------

_CANDIDATES = """
select c.oid, n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relpersistence = 'p' and (c.relkind = 'r' or (c.relkind = 'p' and %(root)s))
  and not (c.relispartition and %(root)s)
  and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname not like 'pg\\_toast%%'
order by 2, 3
"""


def candidates(connection: AdminConnection, settings: PostgresSettings) -> list[TableName]:
    """Tables that the filters choose, published or not."""
    rows = connection.execute(_CANDIDATES, {"root": settings.via_root}).fetchall()
    return [(row[0], row[1], row[2]) for row in rows if settings.filters.table(row[1], row[2])]


def published(connection: AdminConnection, settings: PostgresSettings) -> list[TableName]:
    """Tables of the publication that the filters choose."""
    return [row for row in members(connection, settings.publication) if settings.filters.table(row[1], row[2])]


def check_readable(connection: AdminConnection, settings: PostgresSettings) -> None:
    """CdcError when the role may read the rows of no table at all: then it is no single table that has to be held back."""
    tables = published(connection, settings) if settings.snapshot_mode != "no_data" else []
    if tables and len(unreadable(connection, [table[0] for table in tables])) == len(tables):
        raise CdcError(e.PERMISSION, "the role may read the rows of no table", where={"tables": len(tables)})


def unreadable(connection: AdminConnection, oids: Iterable[int]) -> set[int]:
    """Returns those tables of which the role may not read all columns."""
    rows = connection.execute(
        "select oid from pg_class where oid = any(%s::oid[])"
        " and not (has_table_privilege(oid, 'select') and has_schema_privilege(relnamespace, 'usage'))",
        (list(oids),),
    ).fetchall()
    return {row[0] for row in rows}


_MEMBERSHIPS = """
with pub as (select oid from pg_publication where pubname = %(name)s), t as (
    select c.oid, p.oid as relid, p.relnamespace from pg_class c
    cross join lateral (select c.oid as relid union select relid from pg_partition_ancestors(c.oid)) a
    join pg_class p on p.oid = a.relid where c.oid = any(%(oids)s::oid[])
), entry as (
    select t.oid, r.oid::bigint as number from pg_publication_rel r join pub on r.prpubid = pub.oid
    join t on t.relid = r.prrelid{schemas}
)
select t.oid, coalesce(min(entry.number), 0) from t left join entry on entry.oid = t.oid group by 1
"""
_SCHEMAS = """
    union all select t.oid, s.oid::bigint from pg_publication_namespace s join pub on s.pnpubid = pub.oid
    join t on t.relnamespace = s.pnnspid
"""
"""Joined one by one: with an `or` between them the server compares each table with each entry."""


def memberships(connection: AdminConnection, settings: PostgresSettings, oids: Sequence[int]) -> dict[int, int]:
    """Returns by published table the number of its oldest entry in the publication, its own, its schema's or a
    parent's: a table that was taken out and put back has higher ones only. 0 where the publication names neither tables
    nor schemas."""
    statement = _MEMBERSHIPS.format(schemas=_SCHEMAS if connection.info.server_version >= 150000 else "")
    return dict(connection.execute(statement, {"oids": list(oids), "name": settings.publication}).fetchall())


def has_publication(connection: AdminConnection, settings: PostgresSettings) -> bool:
    statement = "select 1 from pg_publication where pubname = %s"
    return connection.execute(statement, (settings.publication,)).fetchone() is not None


def is_for_all_tables(connection: AdminConnection, settings: PostgresSettings) -> bool:
    """Returns whether a new table is published from its first row on; to any other publication it may be added with
    rows."""
    row = connection.execute(
        "select puballtables from pg_publication where pubname = %s", (settings.publication,)
    ).fetchone()
    return bool(row and row[0])


def ensure_publication(connection: AdminConnection, settings: PostgresSettings) -> bool:
    """Creates or alters the publication as publication.autocreate.mode says; returns whether it changed.

    It must exist before the slot: decoding looks the publication up as of the change that it decodes.
    """
    found = connection.execute(
        "select puballtables, pubviaroot, pg_has_role(pubowner, 'usage') from pg_publication where pubname = %s",
        (settings.publication,),
    ).fetchone()
    if server_functions.is_standby(connection):
        if found is None:
            raise CdcError(
                e.PUBLICATION,
                "the publication has to be created on the primary",
                where={"publication": settings.publication},
            )
        return False
    if found is None:
        if settings.autocreate == "disabled":
            raise CdcError(e.PUBLICATION, "the publication does not exist", where={"publication": settings.publication})
        _create_publication(connection, settings)
        return True
    if settings.autocreate != "filtered" or found[0]:
        return False
    wanted = candidates(connection, settings)
    if not wanted:
        return False
    current, names = set(_members(connection, settings.publication)), {table[1:] for table in wanted}
    # What another role's publication has besides, as a table that is held back, is left out by us.
    fits = names == current or (names < current and not found[2])
    if fits and found[1] == settings.via_root:
        return False
    name = sql.Identifier(settings.publication)
    # The server locks what it is told: those that stay are left alone.
    how, told = ("set", wanted) if current - names or fits else ("add", [t for t in wanted if t[1:] not in current])
    statement = sql.SQL("alter publication {} {} table {}")
    connection.execute(statement.format(name, sql.SQL(how), _table_list(told)))
    if found[1] != settings.via_root:
        connection.execute(sql.SQL("alter publication {} set {}").format(name, _options(settings)))
    log.info("publication altered publication=%s tables=%d", settings.publication, len(wanted))
    hit("postgres.publication_changed")
    return True


def _members(connection: AdminConnection, publication: str) -> list[tuple[str, str]]:
    return connection.execute(
        "select n.nspname, c.relname from pg_publication p join pg_publication_rel r on r.prpubid = p.oid"
        " join pg_class c on c.oid = r.prrelid join pg_namespace n on n.oid = c.relnamespace where p.pubname = %s",
        (publication,),
    ).fetchall()


def _create_publication(connection: AdminConnection, settings: PostgresSettings) -> None:
    name = sql.Identifier(settings.publication)
    scope: sql.Composable = sql.SQL("")
    if settings.autocreate == "all_tables":
        scope = sql.SQL("for all tables ")
    elif settings.autocreate == "filtered":
        tables = candidates(connection, settings)
        if tables:
            scope = sql.SQL("for table {} ").format(_table_list(tables))
        elif settings.filters.share.count == 1:
            raise CdcError(e.TABLE_MISSING, "no table matches the include lists", where={"key": "table.include.list"})
    connection.execute(sql.SQL("create publication {} {}with {}").format(name, scope, _options(settings)))
    log.info("publication created publication=%s mode=%s", settings.publication, settings.autocreate)
    hit("postgres.publication_changed")


def _options(settings: PostgresSettings) -> sql.SQL:
    return sql.SQL(
        "(publish_via_partition_root = true)" if settings.via_root else "(publish_via_partition_root = false)"
    )


def _table_list(tables: Iterable[TableName]) -> sql.Composed:
    # ONLY: a table's children are listed by themselves or published through their root.
    return sql.SQL(", ").join(sql.SQL("only {}").format(sql.Identifier(schema, table)) for _, schema, table in tables)

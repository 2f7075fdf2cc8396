"""Live findings before a connector starts: server, rights, slot, publication, tables. Changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import psycopg
from cdcworker.connectors.api import Finding
from cdcworker.connectors.postgres import errors as e
from cdcworker.connectors.postgres import slot as slots
from cdcworker.connectors.postgres.config import Settings
from cdcworker.connectors.postgres.connection import APPLICATION, AdminConnection, connect, conninfo
from cdcworker.connectors.postgres.slot import TableName
from cdcworker.connectors.postgres.stream import ReplicationStream
from cdcworker.schemas.errors import CODES, CdcError

TABLES_NAMED_MAX = 20
"""Findings of one kind that name their table; the rest are counted."""

Severity = Literal["error", "warning", "note"]
Facts = tuple[AdminConnection, Settings, Sequence[TableName]]

_KEYS = {
    e.AUTHENTICATION: "database.password",
    e.DATABASE_MISSING: "database.dbname",
    e.NO_REPLICATION_RIGHT: "database.user",
    e.PERMISSION: "database.user",
    e.PUBLICATION: "publication.name",
    e.TABLE_MISSING: "table.include.list",
    e.SLOT_UNFIT: "slot.name",
    e.SLOT_IN_USE: "slot.name",
    e.SLOT_LOST: "slot.name",
    e.NO_FREE_SLOT: "slot.name",
}


def finding(code: str, message: str, severity: Severity = "error", *, key: str = "", hint: str = "") -> Finding:
    return Finding(key or _KEYS.get(code, "database.hostname"), severity, code, message, hint or CODES[code].hint)


def of_error(error: CdcError, key: str = "") -> Finding:
    return finding(error.code, error.message, key=key, hint=error.hint)


def check(settings: Settings) -> list[Finding]:
    """All findings; the first that makes the others impossible ends the list."""
    application = f"{APPLICATION}:check"
    try:
        connection = connect(settings, application)
    except CdcError as exc:
        role = exc.code == e.AUTHENTICATION and "does not exist" in exc.message
        return [of_error(exc, "database.user" if role else "")]
    with connection:
        found = list(_replication(settings, application))
        tables = slots.candidates(connection, settings)
        parts: Sequence[Callable[[Facts], Iterator[Finding]]] = (_server, _slot, _publication, _rights, _keys)
        facts: Facts = (connection, settings, tables)
        for part in parts:
            try:
                found.extend(part(facts))
            except psycopg.Error as exc:
                found.append(of_error(e.translate(exc)))
    return found


def _replication(settings: Settings, application: str) -> Iterator[Finding]:
    """The proof of the right to replicate is a replication connection."""
    try:
        stream = ReplicationStream(conninfo(settings, application, replication=True))
    except CdcError as exc:
        yield of_error(exc)
        return
    stream.close()


def _server(facts: Facts) -> Iterator[Finding]:
    connection, settings, _ = facts
    names = ("wal_level", "max_slot_wal_keep_size", "server_encoding")
    setting: dict[str, Any] = dict(
        connection.execute("select name, setting from pg_settings where name = any(%s)", (list(names),)).fetchall()
    )
    if setting["wal_level"] != "logical":
        yield finding(e.WAL_LEVEL, f"wal_level is {setting['wal_level']}")
    if setting["server_encoding"] == "SQL_ASCII":
        yield finding(e.SERVER_ENCODING, "the database's encoding is SQL_ASCII", "warning", key="database.dbname")
    if settings.raw["slot.failover"] and connection.info.server_version < 170000:
        hint = "Failover slots need PostgreSQL 17; an ordinary slot is made."
        yield finding(e.SERVER_VERSION, "slot.failover has no effect here", "note", key="slot.failover", hint=hint)


def _slot(facts: Facts) -> Iterator[Finding]:
    connection, settings, _ = facts
    found = slots.find_slot(connection, settings.slot)
    if found is None:
        yield from _free_slots(connection)
        return
    try:
        slots.check_kind(found, settings.dbname)
    except CdcError as exc:
        yield of_error(exc)
    if found.wal_status == "lost":
        yield finding(e.SLOT_LOST, "the slot exists and has lost WAL that it needed")
    if found.active_pid is not None:
        row = connection.execute(
            "select coalesce(application_name, '') from pg_stat_activity where pid = %s", (found.active_pid,)
        ).fetchone()
        application = row[0] if row else ""
        if application.startswith(APPLICATION):
            hint = "Fine if this connector is running; two connectors must not share a slot."
            yield finding(e.SLOT_IN_USE, f"the slot is read by {application}", "note", hint=hint)
        else:
            yield finding(e.SLOT_IN_USE, f"backend {found.active_pid} reads the slot")


def _free_slots(connection: AdminConnection) -> Iterator[Finding]:
    row = connection.execute(
        "select (select count(*) from pg_replication_slots), current_setting('max_replication_slots')::int,"
        " (select count(*) from pg_stat_replication), current_setting('max_wal_senders')::int"
    ).fetchone()
    assert row
    for name, used, most in (("replication slots", *row[:2]), ("walsenders", *row[2:])):
        if used >= most:
            yield finding(e.NO_FREE_SLOT, f"all {most} {name} are in use")


def _publication(facts: Facts) -> Iterator[Finding]:
    connection, settings, tables = facts
    name, mode = settings.publication, settings.autocreate
    row = connection.execute(
        "select puballtables, pg_has_role(pubowner, 'usage') from pg_publication where pubname = %s", (name,)
    ).fetchone()
    if row is None:
        yield from _new_publication(facts)
        return
    members = {oid for oid, _, _ in slots.published(connection, settings)}
    outside = [f"{schema}.{table}" for oid, schema, table in tables if oid not in members]
    if not outside or row[0]:
        return
    listed = ", ".join(outside[:TABLES_NAMED_MAX])
    if mode == "filtered":
        if not row[1]:
            text = f"publication {name} lacks {len(outside)} tables and belongs to another role: {listed}"
            yield finding(e.PUBLICATION, text, hint="Let its owner add the tables, or make database.user its owner.")
        return
    text = f"publication {name} does not hold {len(outside)} of the chosen tables: {listed}"
    yield finding(e.PUBLICATION, text, "warning", hint=f"ALTER PUBLICATION {name} ADD TABLE …")


def _new_publication(facts: Facts) -> Iterator[Finding]:
    connection, settings, tables = facts
    if settings.autocreate == "disabled":
        yield finding(e.PUBLICATION, f"publication {settings.publication} does not exist")
        return
    row = connection.execute(
        "select has_database_privilege(current_database(), 'create'), rolsuper from pg_roles where rolname = current_user"
    ).fetchone()
    assert row
    if not row[0]:
        hint = f"GRANT CREATE ON DATABASE {settings.dbname} TO {settings.user}, or create the publication yourself."
        yield finding(e.PUBLICATION, "the role may not create a publication", hint=hint)
    if settings.autocreate == "all_tables" and not row[1]:
        hint = "Use publication.autocreate.mode=filtered."
        yield finding(e.PUBLICATION, "a publication of all tables needs a superuser", hint=hint)
    if settings.autocreate == "filtered":
        strange = connection.execute(
            "select oid::regclass::text from pg_class where oid = any(%s) and not pg_has_role(relowner, 'usage')",
            ([oid for oid, _, _ in tables],),
        ).fetchall()
        if strange:
            names = ", ".join(row[0] for row in strange[:TABLES_NAMED_MAX])
            hint = "Publishing a table needs its ownership: let the owner create the publication, or grant the role."
            yield finding(e.PUBLICATION, f"{len(strange)} tables belong to other roles: {names}", hint=hint)


def _rights(facts: Facts) -> Iterator[Finding]:
    connection, settings, tables = facts
    if not tables:
        wanted = ", ".join(settings.filters.table_include) or "the include and exclude lists"
        yield finding(e.TABLE_MISSING, f"no table matches {wanted}")
        return
    names = [f"{schema}.{table}" for _, schema, table in tables]
    for pattern in settings.filters.table_include:
        if not any(re.fullmatch(pattern, name, re.I) for name in names):
            yield finding(e.TABLE_MISSING, f"no table matches {pattern}", "warning")
    if settings.snapshot_mode == "no_data":
        return
    rows = connection.execute(
        "select c.oid::regclass::text from pg_class c where c.oid = any(%s) and not"
        " (has_table_privilege(c.oid, 'select') and has_schema_privilege(c.relnamespace, 'usage'))",
        ([oid for oid, _, _ in tables],),
    ).fetchall()
    if rows:
        listed = ", ".join(row[0] for row in rows[:TABLES_NAMED_MAX])
        hint = "GRANT USAGE ON SCHEMA … and SELECT ON the tables, or use snapshot.mode=no_data."
        yield finding(e.PERMISSION, f"{len(rows)} tables may not be read: {listed}", hint=hint)


_KEYLESS = """
select n.nspname || '.' || c.relname, c.relreplident::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = any(%s) and (c.relreplident = 'n' or not exists (
    select from pg_index i where i.indrelid = c.oid
    and case c.relreplident when 'i' then i.indisreplident when 'd' then i.indisprimary
        else i.indisunique and i.indpred is null and i.indexprs is null end))
order by 1
"""


def _keys(facts: Facts) -> Iterator[Finding]:
    connection, _, tables = facts
    rows = connection.execute(_KEYLESS, ([oid for oid, _, _ in tables],)).fetchall()
    for name, identity in rows[:TABLES_NAMED_MAX]:
        what = {
            "f": "has no key: its records have none either, and a snapshot of it is not resumable",
            "n": "has REPLICA IDENTITY NOTHING: the server refuses its updates and deletes once it is published",
        }.get(identity, "has no primary key: the server refuses its updates and deletes once it is published")
        fix = f"ALTER TABLE {name} ADD PRIMARY KEY …, or ALTER TABLE {name} REPLICA IDENTITY FULL."
        yield finding(e.TABLE_KEYLESS, f"{name} {what}", "warning", key="table.include.list", hint=fix)
    if len(rows) > TABLES_NAMED_MAX:
        text = f"{len(rows) - TABLES_NAMED_MAX} more tables have no key"
        yield finding(e.TABLE_KEYLESS, text, "warning", key="table.include.list")

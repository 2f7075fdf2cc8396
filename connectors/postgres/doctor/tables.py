"""The chosen tables: are they there, may they be read, can their changes be told apart, and what will a snapshot cost?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from cdcworker.connectors.checks import CheckResult, DoctorCheck, Repair, ok
from cdcworker.connectors.postgres import errors as e
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlanner
from cdcworker.connectors.postgres.doctor.examined_server import ExaminedServer, duration, listed, size
from cdcworker.connectors.postgres.position import StoredPosition
from cdcworker.connectors.postgres.server.catalog import SourceCatalog
from cdcworker.connectors.postgres.server.fixes import ident
from cdcworker.connectors.postgres.types.mapping import TypeRegistry, is_known
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.patterns import matches

TABLES_NAMED_MAX = 20
"""Findings of one kind that name their table; the rest are counted."""
PROBE_ROWS = 20_000
PLANS_S = 3.0
"""How long tables are looked at one by one."""


def _matched(examined: ExaminedServer) -> Iterator[CheckResult]:
    include = examined.settings.filters.table_include
    if not examined.tables:
        wanted = ", ".join(include) or "the include and exclude lists"
        yield CheckResult("error", "0 tables", f"no table matches {wanted}", e.TABLE_MISSING)
        return
    names = [f"{schema}.{table}" for _, schema, table in examined.tables]
    missing = [pattern for pattern in include if not any(matches(pattern, name, ignore_case=True) for name in names)]
    for pattern in missing:
        yield CheckResult("warning", f"{len(names)} tables", f"no table matches {pattern}", e.TABLE_MISSING)
    if not missing:
        yield ok(f"{len(names)} tables")


def _reads(examined: ExaminedServer) -> bool:
    return bool(examined.settings.snapshot_mode != "no_data" and examined.tables)


def _usage(examined: ExaminedServer) -> Iterator[CheckResult]:
    schemas = sorted({schema for _, schema, _ in examined.tables})
    rows = examined.rows("select s from unnest(%s::text[]) s where not has_schema_privilege(s, 'usage')", schemas)
    if not rows or not _reads(examined):
        yield ok(listed(schemas) or "no table")
        return
    closed = [str(row[0]) for row in rows]
    grants = tuple(f"GRANT USAGE ON SCHEMA {ident(schema)} TO {ident(examined.user)}" for schema in closed)
    text = f"the role may not use schema {listed(closed)}"
    yield CheckResult("error", f"{len(closed)} schemas closed", text, e.PERMISSION, fix=Repair(grants, safe=True))


def _select(examined: ExaminedServer) -> Iterator[CheckResult]:
    """Checks the right to SELECT by column: the connector reads those that the config leaves in."""
    if not _reads(examined):
        yield ok("not needed")
        return
    rows = examined.rows(
        "select n.nspname, c.relname, array_agg(a.attname::text order by a.attnum) from pg_class c"
        " join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = c.oid"
        " where c.oid = any(%s) and a.attnum > 0 and not a.attisdropped"
        " and not has_column_privilege(c.oid, a.attnum, 'select') group by 1, 2 order by 1, 2",
        examined.oids,
    )
    column = examined.settings.filters.column
    closed = [(schema, table) for schema, table, names in rows if any(column(schema, table, name) for name in names)]
    if not closed:
        yield ok(f"{len(examined.tables)} tables")
        return
    names = [f"{schema}.{table}" for schema, table in closed]
    text = f"{len(closed)} tables may not be read: {listed(names, TABLES_NAMED_MAX)}"
    grant = f"GRANT SELECT ON {', '.join(ident(*table) for table in closed)} TO {ident(examined.user)}"
    hint = f"{grant}, or use snapshot.mode=no_data."
    yield CheckResult(
        "error", f"{len(closed)} tables closed", text, e.PERMISSION, hint=hint, fix=Repair((grant,), safe=True)
    )


def _row_security(examined: ExaminedServer) -> Iterator[CheckResult]:
    rows = examined.rows(
        "select o::oid::regclass::text from unnest(%s::oid[]) o where row_security_active(o)", examined.oids
    )
    if not rows or not _reads(examined):
        yield ok("none is in the way")
        return
    names = [row[0] for row in rows]
    text = f"row security hides rows of {listed(names)} from this role: the snapshot misses them, the stream does not"
    fix = Repair((f"ALTER ROLE {ident(examined.user)} BYPASSRLS",), "By a superuser.")
    yield CheckResult("warning", f"{len(names)} tables", text, e.PERMISSION, "database.user", fix=fix)


# What the server takes for an identity, and under FULL what the catalog is asked for as a key.
_USABLE = "i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null and i.indexprs is null"
_NOT_NULL = """not exists (select from unnest(i.indkey[0:i.indnkeyatts - 1]) k(num)
        join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.num where not a.attnotnull)"""
_KEYLESS = f"""
select n.nspname, c.relname, c.relreplident::text,
    exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary and {_USABLE}),
    (select x.relname from pg_index i join pg_class x on x.oid = i.indexrelid where i.indrelid = c.oid and {_USABLE}
     and {_NOT_NULL} order by i.indnkeyatts, i.indexrelid limit 1),
    exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary and not i.indimmediate)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = any(%s) and (c.relreplident = 'n' or not exists (
    select from pg_index i where i.indrelid = c.oid and {_USABLE}
    and case c.relreplident when 'i' then i.indisreplident when 'd' then i.indisprimary else {_NOT_NULL} end))
order by 1, 2
"""


def _keys(examined: ExaminedServer) -> Iterator[CheckResult]:
    rows = examined.rows(_KEYLESS, examined.oids)
    if not rows:
        yield ok(f"{len(examined.tables)} tables with a key")
    for schema, table, identity, has_primary, unique, is_deferrable in rows[:TABLES_NAMED_MAX]:
        yield _keyless((schema, table), identity, has_primary, unique, is_deferrable)
    if len(rows) > TABLES_NAMED_MAX:
        text = f"{len(rows) - TABLES_NAMED_MAX} more tables have no key"
        yield CheckResult("warning", f"{len(rows)} tables", text, e.TABLE_KEYLESS, "table.include.list")


def _keyless(
    path: tuple[str, str], identity: str, has_primary: bool, unique: str | None, is_deferrable: bool
) -> CheckResult:
    name, target = ".".join(path), ident(*path)
    what = {
        "f": "has no key: its records have none either, and a snapshot of it is not resumable",
        "n": "has REPLICA IDENTITY NOTHING: the server refuses its updates and deletes once it is published",
    }.get(identity, "has no primary key: the server refuses its updates and deletes once it is published")
    change = f"ALTER TABLE {target} REPLICA IDENTITY "
    better = f"ALTER TABLE {name} ADD PRIMARY KEY …"
    if is_deferrable:
        what += " (its primary key is DEFERRABLE, which the server takes for none)"
        better = f"Make the primary key of {name} again without DEFERRABLE"
    hint = f"{better}, or ALTER TABLE {name} REPLICA IDENTITY FULL."
    if has_primary:
        fix, hint = Repair((change + "DEFAULT",)), f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT."
    elif unique is not None:
        fix, hint = Repair((change + f"USING INDEX {ident(unique)}",)), ""
    elif identity == "f":
        fix = Repair(steps=f"{better}." if is_deferrable else f"ALTER TABLE {target} ADD PRIMARY KEY (…).")
    else:
        fix = Repair((change + "FULL",), "Better: a primary key. FULL writes the whole old row to the log each time.")
    measured = {"d": "default", "i": "index", "n": "nothing", "f": "full"}[identity]
    return CheckResult(
        "warning", f"{name}: {measured}", f"{name} {what}", e.TABLE_KEYLESS, "table.include.list", hint, fix
    )


_TYPED = """
select n.nspname, c.relname, a.attname, format_type(a.atttypid, a.atttypmod), coalesce(a.attnum = any(i.indkey), false)
from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
left join pg_index i on i.indrelid = c.oid and i.indisprimary
where c.oid = any(%s) and a.attnum > 0 and not a.attisdropped and format_type(a.atttypid, null) = any(%s)
order by 1, 2, a.attnum
"""


def _is_scaled(declared: str) -> bool:
    """Tells whether a type is a numeric(p,s) that is a decimal to readers."""
    name, _, numbers = declared.rstrip(")").partition("(")
    precision, _, scale = numbers.partition(",")
    return name == "numeric" and bool(numbers) and 0 <= int(scale or 0) <= int(precision)


def _key_values(examined: ExaminedServer) -> Iterator[CheckResult]:
    """Keys are exact, so they may hold values that no reader of their types has."""
    settings, keys = examined.settings, examined.settings.keys
    if examined.position is not None:
        stored = StoredPosition.from_json(examined.position)
        settings = settings.going_on(stored.timestamptz, stored.key_nan)
    modes = settings.modes
    nan_is_read = modes.key_nan == "number"
    types = ["numeric"] * (modes.decimal == "precise")
    types += ["date", "time without time zone", "timestamp without time zone"] if modes.time == "connect" else []
    found = [
        f"{schema}.{table}.{column} ({declared})"
        for schema, table, column, declared, is_primary in examined.rows(_TYPED, examined.oids, types)
        if (is_primary or column in keys.columns_of(schema, table)) and not (nan_is_read and _is_scaled(declared))
    ]
    if not found:
        yield ok("none")
        return
    text = f"some readers fail at NaN and infinite or far dates and times in keys, which are exact: {listed(found)}"
    hint = (
        "Where there are such values: another key (message.key.columns), decimal.handling.mode=string or another time.precision.mode."
        " For a numeric(p,s) key.nan.handling.mode=number with new topics."
    )
    yield CheckResult("note", f"{len(found)} columns", text, hint=hint)


def _unlogged(examined: ExaminedServer) -> Iterator[CheckResult]:
    rows = examined.rows(
        "select n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where c.relkind in ('r', 'p') and c.relpersistence = 'u' order by 1, 2"
    )
    include = examined.settings.filters.table_include
    names = [(str(row[0]), str(row[1])) for row in rows if include and examined.settings.filters.table(row[0], row[1])]
    if not names:
        yield ok("none")
        return
    shown = listed([".".join(name) for name in names])
    fix = Repair(tuple(f"ALTER TABLE {ident(*name)} SET LOGGED" for name in names), "Rewrites the table under a lock.")
    text = f"unlogged tables are not in the log and are left out: {shown}"
    yield CheckResult("warning", f"{len(names)} tables", text, e.TABLE_MISSING, fix=fix)


def _toast(examined: ExaminedServer) -> Iterator[CheckResult]:
    rows = examined.rows(
        "select c.oid::regclass::text from pg_class c where c.oid = any(%s) and c.relreplident in ('d', 'i')"
        " and c.reltoastrelid <> 0 and pg_relation_size(c.reltoastrelid) > 0 order by 1",
        examined.oids,
    )
    if not rows:
        yield ok("none")
        return
    text = f"large values that an update leaves alone come as a placeholder: {listed([row[0] for row in rows])}"
    hint = "Our sinks keep the old value. For other readers: ALTER TABLE … REPLICA IDENTITY FULL (more log)."
    yield CheckResult("note", f"{len(rows)} tables", text, hint=hint)


def _partitions(examined: ExaminedServer) -> Iterator[CheckResult]:
    found = examined.row(
        "select count(*) filter (where relispartition), count(*) filter (where relkind = 'p')"
        " from pg_class where oid = any(%s)",
        examined.oids,
    )
    if not found[0] or examined.settings.via_root:
        yield ok(f"{found[1]} partitioned tables")
        return
    text = f"{found[0]} partitions have a topic each"
    hint = "publish.via.partition.root=true gives one topic per partitioned table."
    yield CheckResult("note", f"{found[0]} partitions", text, key="publish.via.partition.root", hint=hint)


def _types(examined: ExaminedServer) -> Iterator[CheckResult]:
    rows = examined.rows(
        "select distinct atttypid, atttypmod from pg_attribute where attrelid = any(%s) and attnum > 0"
        " and not attisdropped",
        examined.oids,
    )
    known = SourceCatalog(examined.connection).types([(row[0], row[1]) for row in rows])
    plain = {known.types[row[0]].name for row in rows if not is_known(known.types[row[0]], TypeRegistry(known.types))}
    if not plain:
        yield ok(f"{len({row[0] for row in rows})} types")
        return
    text = f"these types have no form of their own and come as text: {listed(sorted(plain))}"
    yield CheckResult("note", f"{len(plain)} types", text, hint="Nothing is lost: it is the server's own text.")


def _plans(examined: ExaminedServer) -> Iterator[CheckResult]:
    """The tables as the task will read them: masks, message keys and refused types are found before it starts."""
    settings = examined.settings
    if not settings.masks.rules and not settings.keys.items and settings.modes.unknown != "refuse":
        yield ok("nothing asks for it")
        return
    catalog = SourceCatalog(examined.connection)
    planner = TableDecodePlanner(catalog, settings.modes, settings.filters, settings.masks, settings.keys)
    until, count = time.monotonic() + PLANS_S, 0
    for oid in examined.oids:
        info = catalog.table(oid) if time.monotonic() < until else None
        try:
            if info is not None:
                planner.plan(info.relation(), info)
                count += 1
        except CdcError as exc:
            text = f"{exc.where.get('table')}: {exc.message} (column {exc.where.get('column')})"
            yield CheckResult("error", "1 table", text, exc.code, str(exc.where.get("key", "")), hint=exc.hint)
    yield ok(f"{count} of {len(examined.oids)} tables can be read as the config says")


def _held(examined: ExaminedServer) -> Iterator[CheckResult]:
    """Checks for tables in quarantine by what the connector has stored: a check of the config alone knows of none."""
    tables = (examined.position or {}).get("quarantine") or {}
    if not tables:
        yield ok("no table" if examined.position is not None else "not known here")
    for name, why in tables.items():
        text = f"{name} is held back: {why.get('message', '')}"
        hint = "Mend the cause, then ask for a snapshot of the table or change the connector's config."
        yield CheckResult("warning", f"{len(tables)} tables", text, str(why.get("code", e.VALUE)), hint=hint)


def _estimate(examined: ExaminedServer) -> Iterator[CheckResult]:
    rows, size_bytes = examined.row(
        "select coalesce(sum(greatest(reltuples, 0)), 0)::float8, coalesce(sum(pg_table_size(oid)), 0)::float8"
        " from pg_class where oid = any(%s)",
        examined.oids,
    )
    yield ok(f"about {rows:,.0f} rows, {size(size_bytes)}")


def _speed(examined: ExaminedServer) -> Iterator[CheckResult]:
    """A snapshot's time at the speed of a few thousand rows of the largest table."""
    if not _reads(examined):
        yield ok("no snapshot")
        return
    schema, table, total, largest = examined.row(
        "select n.nspname, c.relname, (select sum(pg_table_size(oid)) from pg_class where oid = any(%s))::float8,"
        " pg_table_size(c.oid)::float8 / greatest(c.reltuples, 1) from pg_class c join pg_namespace n"
        " on n.oid = c.relnamespace where c.oid = any(%s) order by pg_table_size(c.oid) desc limit 1",
        examined.oids, examined.oids,
    )  # fmt: skip
    began, count = time.monotonic(), 0
    with examined.connection.cursor() as cursor:
        statement = f"copy (select * from {ident(schema, table)} limit {PROBE_ROWS}) to stdout"
        with cursor.copy(statement.encode()) as copy:
            count = sum(bytes(block).count(b"\n") for block in copy)
    took = max(time.monotonic() - began, 1e-6)
    if count == 0:
        yield ok("the largest table is empty")
        return
    seconds = total / max(count * largest / took, 1.0)
    yield ok(f"{count / took:,.0f} rows/s from {schema}.{table}: about {duration(seconds)} for {size(total)}")


def _of(*checks: DoctorCheck) -> Sequence[DoctorCheck]:
    return checks


CHECKS = _of(
    DoctorCheck("tables.matched", "A pattern without a table is mostly a misspelt one.", _matched),
    DoctorCheck("rights.schema_usage", "Tables of a schema that may not be used cannot be read.", _usage),
    DoctorCheck("rights.select", "The snapshot reads the rows themselves.", _select),
    DoctorCheck("rights.row_security", "Policies hide rows from ordinary reads, not from the log.", _row_security),
    DoctorCheck("tables.keys", "Without a key nobody can say which row was updated or deleted.", _keys),
    DoctorCheck("tables.key_values", "Keys hold values that some readers do not take: two keys must never become one.",
          _key_values, validates=False),
    DoctorCheck("tables.unlogged", "What is not in the log cannot be captured.", _unlogged),
    DoctorCheck("tables.toast", "The server does not send large values again that did not change.", _toast, validates=False),
    DoctorCheck("tables.partitions", "Decides how many topics there are.", _partitions, validates=False),
    DoctorCheck("tables.types", "A reader should know which columns are text only for want of a form.", _types,
          validates=False),
    DoctorCheck("tables.plans", "A mask that hides nothing, or a key that a deletion does not hold, is found too late.", _plans),
    DoctorCheck("tables.held", "A table that is held back is not captured until it is taken back.", _held, validates=False),
    DoctorCheck("tables.size", "What a snapshot has to read.", _estimate, validates=False),
    DoctorCheck("tables.speed", "How long a snapshot will take.", _speed, validates=False, deep=True),
)  # fmt: skip

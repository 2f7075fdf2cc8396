"""The captured tables: whether they can be read, and what of their changes the log does not hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from cdcworker.connectors.checks import CheckResult, DoctorCheck, Repair, ok
from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.catalog.column_types import CatalogType, column_type
from cdcworker.connectors.mysql.doctor.log import listed
from cdcworker.connectors.mysql.errors import UnknownTypeError
from cdcworker.connectors.mysql.server.connection import translate
from cdcworker.connectors.mysql.server.examined_server import ExaminedServer
from cdcworker.connectors.mysql.server.grants import quoted

LOOKED_AT: Final = 2000
"""Tables that are looked at one by one."""
_TRANSACTIONAL: Final = frozenset({"innodb", "rocksdb", "ndbcluster", "ndb"})
_COLUMNS: Final = (
    "select table_schema, table_name, column_name, data_type, column_type, character_set_name, character_octet_length,"
    " numeric_precision, numeric_scale, datetime_precision from information_schema.columns where table_schema in %s"
)
_KEYS: Final = (
    "select table_schema, table_name from information_schema.statistics where non_unique = 0 and table_schema in %s"
    " group by table_schema, table_name, index_name having sum(nullable = 'YES') = 0 and sum(sub_part is not null) = 0"
)
_CASCADES: Final = (
    "select constraint_schema, table_name from information_schema.referential_constraints where constraint_schema in %s"
    " and (delete_rule in ('CASCADE', 'SET NULL', 'SET DEFAULT') or update_rule in ('CASCADE', 'SET NULL', 'SET DEFAULT'))"
)


def _readable(examined: ExaminedServer) -> Iterator[CheckResult]:
    captured = examined.captured()
    user = examined.user()
    refused = [table for table in captured[:LOOKED_AT] if not _may_read(examined, table)]
    hidden = sorted(_literal(examined.settings.raw["table.include.list"] or ()) - set(captured))
    for table in (*refused, *hidden):
        name, fix = ".".join(table), Repair((f"GRANT SELECT ON {quoted(*table)} TO {user}",), safe=True)
        if table in refused:
            text = f"the user lacks SELECT on {name}, without which its rows are not read"
            yield CheckResult("error", f"no SELECT on {name}", text, e.PERMISSION, fix=fix)
        else:
            text = f"table.include.list names {name}, which is not there, or on which the user lacks SELECT"
            yield CheckResult("warning", f"{name} is not seen", text, e.TABLE_MISSING, fix=fix)
    if not refused and not hidden:
        yield ok(f"{len(captured)} tables")


def _literal(patterns: Iterable[str]) -> set[tuple[str, str]]:
    """Returns the tables that patterns name which mean one table alone."""
    out = set()
    for pattern in patterns:
        parts = pattern.replace("\\.", ".").split(".")
        if len(parts) == 2 and all(part and all(c.isalnum() or c in "_$" for c in part) for part in parts):
            out.add((parts[0], parts[1]))
    return out


def _may_read(examined: ExaminedServer, table: tuple[str, str]) -> bool:
    import pymysql

    try:
        examined.ask(f"select 1 from {quoted(*table)} limit 0")
    except pymysql.Error as exc:
        error = translate(exc)
        if error.code == e.PERMISSION:
            return False
        if error.code != e.SERVER:
            raise error from exc
    return True


def _of_captured(examined: ExaminedServer, statement: str) -> tuple[set[tuple[str, str]], list[tuple[Any, ...]]]:
    """Returns the captured tables, and those rows of a statement over their databases that begin with one of them."""
    captured = set(examined.captured())
    databases = sorted({database for database, _ in captured})
    rows = examined.ask(statement, (databases,)) if databases else []
    return captured, [row for row in rows if (str(row[0]), str(row[1])) in captured]


def _names(tables: Iterable[tuple[Any, ...]]) -> list[str]:
    return sorted({f"{row[0]}.{row[1]}" for row in tables})


def _keys(examined: ExaminedServer) -> Iterator[CheckResult]:
    captured, rows = _of_captured(examined, _KEYS)
    without = _names(captured - {(str(row[0]), str(row[1])) for row in rows})
    if not without:
        yield ok("every table has one")
        return
    text = f"tables without a key that tells rows apart: {listed(without)}; warehouses append their changes"
    yield CheckResult("note", f"{len(without)} without one", text, hint="Give them a primary key.")


def _cascades(examined: ExaminedServer) -> Iterator[CheckResult]:
    _, rows = _of_captured(examined, _CASCADES)
    found = _names(rows)
    if not found:
        yield ok("none")
        return
    text = f"rows that a foreign key deletes or changes are not in the log: {listed(found)}"
    hint = "Delete the rows by statements of their own, or load these tables anew now and then."
    yield CheckResult("warning", f"{len(found)} tables", text, hint=hint)


def _engines(examined: ExaminedServer) -> Iterator[CheckResult]:
    statement = "select table_schema, table_name, engine from information_schema.tables where table_schema in %s"
    _, rows = _of_captured(examined, statement)
    found = sorted((str(row[0]), str(row[1])) for row in rows if str(row[2]).lower() not in _TRANSACTIONAL)
    if not found:
        yield ok("all have transactions")
        return
    text = f"tables whose engine has no transactions, of which a part may stay of what fails: {listed(_names(found))}"
    fix = Repair((f"ALTER TABLE {quoted(*found[0])} ENGINE = InnoDB",), "It writes the whole table anew.")
    yield CheckResult("note", f"{len(found)} tables", text, fix=fix)


def _types(examined: ExaminedServer) -> Iterator[CheckResult]:
    _, rows = _of_captured(examined, _COLUMNS)
    found = []
    for database, table, column, data_type, *rest in rows:
        try:
            column_type(CatalogType(str(data_type), str(rest[0]), *rest[1:]))
        except UnknownTypeError as exc:
            found.append(f"{database}.{table}.{column} ({exc})")
    if not found:
        yield ok(f"{len(rows)} columns")
        return
    text = f"columns whose type or character set is not known, so that their tables are held back: {listed(found)}"
    yield CheckResult("warning", f"{len(found)} columns", text, e.TYPE_UNKNOWN)


CHECKS: Final = (
    DoctorCheck("tables.readable", "Rows that may not be read are not loaded.", _readable),
    DoctorCheck("tables.types", "A column that cannot be read holds back its table.", _types),
    DoctorCheck("tables.key", "Without a key nobody can tell which row a change means.", _keys, validates=False),
    DoctorCheck("tables.cascades", "The server does not log what its foreign keys do.", _cascades, validates=False),
    DoctorCheck("tables.engine", "Only transactions show a table as it was at one moment.", _engines, validates=False),
)  # fmt: skip

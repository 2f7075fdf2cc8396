"""What the log of a real server leaves out, and its catalog says: with MINIMAL and the catalog a table is what FULL says it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from cdcworker.connectors.mysql.binlog.rows import RowsEvent
from cdcworker.connectors.mysql.binlog.table_map import Column, TableMap
from cdcworker.connectors.mysql.catalog.completion import TableCatalog
from cdcworker.connectors.mysql.catalog.tables import CatalogTable, read_table
from cdcworker.connectors.mysql.errors import SCHEMA_UNPLACED
from cdcworker.connectors.mysql.server.connection import opened
from cdcworker.connectors.mysql.types.charsets import name_of
from cdcworker.schemas.change import NO_DEFAULT
from cdcworker.schemas.errors import CdcError

from ..logged import LoggedServer
from ..server.test_checks import settings_of
from ..types.test_values import CASES

pytestmark = pytest.mark.mysql


@pytest.fixture
def minimal(logged: LoggedServer) -> Iterator[LoggedServer]:
    """The server, whose log says as little of columns as it may."""
    logged.ask("set global binlog_row_metadata = 'NO_LOG'")
    try:
        yield logged
    finally:
        logged.ask("set global binlog_row_metadata = 'FULL'")


def read(server: LoggedServer, database: str, name: str) -> CatalogTable | None:
    with closing(opened(settings_of(server))) as connection:
        return read_table(connection, database, name, is_mariadb=True)


def catalog_of(server: LoggedServer) -> TableCatalog:
    return TableCatalog(lambda database, name: read(server, database, name), is_mariadb=True)


def with_charsets(columns: tuple[Column, ...]) -> list[Column]:
    """Collations of one character set are alike to who decodes."""
    names = [None if c.type.collation is None else name_of(c.type.collation) for c in columns]
    # A geometry is no string to the catalog, and its kind is nothing that reading needs.
    plain = [c._replace(geometry=None, type=c.type._replace(collation=None)) for c in columns]
    return [
        (column, None if column.type.code.name == "GEOMETRY" else name)  # type: ignore[misc]
        for column, name in zip(plain, names, strict=True)
    ]


def test_a_table_of_every_type_is_completed_to_what_full_says(logged: LoggedServer) -> None:
    columns = "".join(f", `v {i}` {case.column}" for i, case in enumerate(CASES))
    logged.ask("create database if not exists shop")
    logged.ask(f"create or replace table shop.types (a int, b varchar(3), primary key (b, a){columns})")
    insert = "insert into types (a, b) values ({}, 'x')"
    (full,) = logged.rows(insert.format(1), complete=catalog_of(logged).complete)
    logged.ask("set global binlog_row_metadata = 'NO_LOG'")
    try:
        (less,) = logged.rows(insert.format(2), complete=catalog_of(logged).complete)
    finally:
        logged.ask("set global binlog_row_metadata = 'FULL'")
    assert full.table is not None
    assert less.table is not None
    assert with_charsets(less.table.columns) == with_charsets(full.table.columns)
    assert less.table.key == full.table.key == ((1, 0), (0, 0))
    declared = {column.type.declared for column in full.table.columns}
    assert declared == {"", "uuid", "inet4", "inet6", "year(2)"}
    assert [row.after[2:] for row in less.rows] == [row.after[2:] for row in full.rows]


def test_rows_without_names_in_the_log_are_read_by_the_catalog(minimal: LoggedServer) -> None:
    (rows,) = minimal.rows(
        r"create or replace table m (id int unsigned primary key, e enum('a','b''c','d\\e','f\ng') character set latin1, u uuid)",
        r"insert into m values (4294967295, 'd\\e', '123e4567-e89b-12d3-a456-426655440000')",
        complete=catalog_of(minimal).complete,
    )
    assert rows.rows[0].after == (4294967295, "d\\e", "123e4567-e89b-12d3-a456-426655440000")
    assert [column.name for column in rows.table.columns] == ["id", "e", "u"]


def test_a_table_that_was_changed_is_asked_for_again(minimal: LoggedServer) -> None:
    catalog = catalog_of(minimal)
    minimal.rows(
        "create or replace table c (id int primary key)", "insert into c values (1)", complete=catalog.complete
    )
    (rows,) = minimal.rows("alter table c add v int unsigned", "insert into c values (2, 3)", complete=catalog.complete)
    assert rows.rows[0].after == (2, 3)


ALTERATIONS = [
    "drop column v",
    "add w int",
    "modify v bigint",
    "modify v int not null",
    "modify v varchar(5)",
]


@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_a_map_of_a_table_that_looks_otherwise_by_now_is_refused(minimal: LoggedServer, alteration: str) -> None:
    statements = (
        "create or replace table p (id int primary key, v int)",
        "insert into p values (1, 2)",
        f"alter table p {alteration}",
    )
    with pytest.raises(CdcError) as caught:
        minimal.rows(*statements, complete=catalog_of(minimal).complete)
    assert caught.value.code == SCHEMA_UNPLACED
    assert caught.value.where["table"] == "shop.p"


def test_a_dropped_table_is_refused_too(minimal: LoggedServer) -> None:
    statements = ("create or replace table p (id int primary key)", "insert into p values (1)", "drop table p")
    with pytest.raises(CdcError) as caught:
        minimal.rows(*statements, complete=catalog_of(minimal).complete)
    assert caught.value.code == SCHEMA_UNPLACED


def test_with_names_in_the_log_a_changed_table_is_read_as_it_was(logged: LoggedServer) -> None:
    found: list[TableMap] = []
    catalog = catalog_of(logged)

    def complete(table: TableMap) -> TableMap:
        found.append(catalog.complete(table))
        return found[-1]

    rows = logged.rows(
        "create or replace table f (id int primary key, u uuid, v int)",
        "insert into f values (1, '123e4567-e89b-12d3-a456-426655440000', 2)",
        "alter table f drop column v, add w text first",
        complete=complete,
    )
    assert [row.after for event in rows for row in event.rows] == [(1, "123e4567-e89b-12d3-a456-426655440000", 2)]
    # A binary string that the catalog knows nothing of may be a UUID or an address.
    with pytest.raises(CdcError) as caught:
        logged.rows(
            "create or replace table f (id int primary key, u uuid)",
            "insert into f values (1, '123e4567-e89b-12d3-a456-426655440000')",
            "alter table f drop column u",
            complete=catalog.complete,
        )
    assert caught.value.code == SCHEMA_UNPLACED


def test_keys_defaults_and_json_are_in_the_catalog(logged: LoggedServer) -> None:
    logged.ask(
        "create database if not exists shop",
        "create or replace table shop.k (a int not null, b int not null, c int, j json, d varchar(9) default 'it''s',"
        " n int default 5, x int default (1 + 1), t timestamp null default current_timestamp,"
        " unique wide (a, b), unique narrow (b), unique loose (c))",
        "create or replace table shop.none (a int, unique (a))",
    )
    table = read(logged, "shop", "k")
    assert table is not None
    # The server logs the first index of columns that are never null as the key.
    assert (table.primary, table.key) == ((), ("a", "b"))
    assert {column.name: column.default for column in table.columns} == {
        "a": NO_DEFAULT, "b": NO_DEFAULT, "c": None, "j": None, "d": "it's", "n": "5", "x": NO_DEFAULT, "t": NO_DEFAULT,
    }  # fmt: skip
    assert [column.name for column in table.columns if column.is_json] == ["j"]
    none = read(logged, "shop", "none")
    assert none is not None
    assert none.key == ()
    assert read(logged, "shop", "missing") is None


def test_rows_of_a_table_without_a_key_have_none(minimal: LoggedServer) -> None:
    (rows,) = minimal.rows(
        "create or replace table n (a int)", "insert into n values (1)", complete=catalog_of(minimal).complete
    )
    assert isinstance(rows, RowsEvent)
    assert rows.table.key == ()

"""Places and visibilities of both servers, and keys as literals of statements."""

from __future__ import annotations

import pytest
from cdcworker.connectors.mysql.snapshot.read_view import GtidPlace, GtidVisibility
from cdcworker.connectors.mysql.snapshot.selected_values import converter, literal, quoted, selected
from cdcworker.connectors.mysql.types.column import ColumnType, TypeCode

ONE = "31c87224-e9b8-11f1-9d87-02fc00000001"
TWO = "41c87224-e9b8-11f1-9d87-02fc00000001"


def mysql(text: str) -> GtidPlace:
    return GtidPlace.parse(text, is_mariadb=False)


def mariadb(text: str) -> GtidPlace:
    return GtidPlace.parse(text, is_mariadb=True)


def test_a_place_of_mysql_is_behind_another_when_it_holds_all_of_it():
    assert mysql(f"{ONE}:1-9,{TWO}:1") >= mysql(f"{ONE}:3-5")
    assert not mysql(f"{ONE}:1-9") >= mysql(f"{TWO}:1")
    assert not mysql(f"{TWO}:1") >= mysql(f"{ONE}:1-9")
    assert not mysql(f"{ONE}:1-2:4") >= mysql(f"{ONE}:3")
    assert mysql("") >= mysql("")


def test_a_place_of_mariadb_is_behind_another_when_it_is_in_each_domain():
    assert mariadb("0-1-10,1-1-5") >= mariadb("0-2-10")
    assert not mariadb("0-1-10") >= mariadb("0-1-9,1-1-1")
    assert not mariadb("0-1-10") >= mysql("")


@pytest.mark.parametrize(
    ("low", "seen", "unseen", "is_mariadb"),
    [(f"{ONE}:1-5", f"{ONE}:5", f"{ONE}:6", False), (f"{ONE}:1-5:tag:1", f"{ONE}:tag:1", f"{ONE}:tag:2", False),
     ("0-1-5", "0-7-5", "0-1-6", True)],
)  # fmt: skip
def test_a_read_sees_what_was_executed_before_it(low: str, seen: str, unseen: str, is_mariadb: bool):
    snap = GtidVisibility(GtidPlace.parse(low, is_mariadb=is_mariadb), exact=is_mariadb)
    assert snap.sees(seen)
    assert snap.sees_delivered(seen)
    assert not snap.sees(unseen)
    assert GtidPlace.parse(str(snap), is_mariadb=is_mariadb) == snap.low


@pytest.mark.parametrize(
    ("kind", "text", "written"),
    [
        (ColumnType(TypeCode.LONGLONG, is_unsigned=True), "18446744073709551615", "18446744073709551615"),
        (ColumnType(TypeCode.NEWDECIMAL, 30, 10), "1.50", "1.50"),
        (ColumnType(TypeCode.DOUBLE, 8), "0.1", "0.1e0"),
        (ColumnType(TypeCode.ENUM, 1, members=("z", "a")), "a", "2"),
        (ColumnType(TypeCode.SET, 1, members=("z", "a")), "z,a", "3"),
        (ColumnType(TypeCode.VARCHAR, 9, collation=63), "00ff", "X'00ff'"),
        (ColumnType(TypeCode.VARCHAR, 9, collation=45), "it's\\", "_utf8mb4 X'697427735c'"),
        (ColumnType(TypeCode.VARCHAR, 9, collation=45), "", "''"),
    ],
)
def test_a_key_is_a_literal_of_its_type(kind: ColumnType, text: str, written: str):
    assert literal(kind, text) == written


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ColumnType(TypeCode.LONG), "1 or 1=1"),
        (ColumnType(TypeCode.NEWDECIMAL, 3, 1), "1)"),
        (ColumnType(TypeCode.DOUBLE, 8), "x"),
        (ColumnType(TypeCode.ENUM, 1, members=("a",)), "b"),
        (ColumnType(TypeCode.VARCHAR, 9, collation=63), "'"),
    ],
)
def test_a_stored_key_that_is_none_of_its_type_is_no_part_of_a_statement(kind: ColumnType, text: str):
    with pytest.raises((ValueError, ArithmeticError)):
        literal(kind, text)


def test_names_are_quoted():
    assert quoted("a`b", "c") == "`a``b`.`c`"


@pytest.mark.parametrize(
    ("kind", "expression", "text", "value"),
    [
        (ColumnType(TypeCode.VECTOR, 4), "hex(`c`)", "0000803F00000040", (1.0, 2.0)),
        (ColumnType(TypeCode.BIT, 9), "`c` + 0", "5", 5),
        (ColumnType(TypeCode.YEAR, declared="year(2)"), "year(`c`)", "1999", 1999),
        (ColumnType(TypeCode.FLOAT, 4), "cast(`c` as double)", "1.100000023841858", 1.100000023841858),
        (ColumnType(TypeCode.VARCHAR, 9, collation=45), "`c`", "1", "1"),
    ],
)
def test_a_value_is_selected_so_that_nothing_of_it_is_lost(kind: ColumnType, expression: str, text: str, value: object):
    assert selected("c", kind) == expression
    assert converter(kind)(text.encode()) == value

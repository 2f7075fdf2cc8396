"""Types, members, defaults and keys as the catalog's texts say them."""

from __future__ import annotations

import pytest
from cdcworker.connectors.mysql.catalog.column_types import CatalogType, column_type, constant_of, members_of
from cdcworker.connectors.mysql.catalog.tables import IndexPart, keys_of
from cdcworker.connectors.mysql.errors import UnknownTypeError
from cdcworker.connectors.mysql.types.column import ColumnType, TypeCode


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("enum('a','b')", ("a", "b")),
        (r"enum('b''c','d\\e','f\ng','x,y','')", ("b'c", "d\\e", "f\ng", "x,y", "")),
        ("set(')','(''')", (")", "('")),
        ("enum('')", ("",)),
    ],
)
def test_members_are_read_with_their_quotes_and_escapes(text: str, members: tuple[str, ...]):
    assert members_of(text) == members


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (CatalogType("int", "int(10) unsigned"), ColumnType(TypeCode.LONG, is_unsigned=True)),
        (
            CatalogType("decimal", "decimal(65,30)", precision=65, scale=30),
            ColumnType(TypeCode.NEWDECIMAL, 65, 30, False),
        ),
        (CatalogType("varchar", "varchar(9)", "utf8", 27), ColumnType(TypeCode.VARCHAR, 27, collation=33)),
        (CatalogType("set", "set('a')", "latin1"), ColumnType(TypeCode.SET, 1, collation=5, members=("a",))),
        (CatalogType("longtext", "longtext", "latin1", 1 << 32), ColumnType(TypeCode.BLOB, 4, collation=5)),
        (CatalogType("year", "year"), ColumnType(TypeCode.YEAR, is_unsigned=True)),
        (CatalogType("year", "year(2)"), ColumnType(TypeCode.YEAR, is_unsigned=True, declared="year(2)")),
        (CatalogType("inet6", "inet6"), ColumnType(TypeCode.STRING, 16, collation=63, declared="inet6")),
        (CatalogType("vector", "vector(3)"), ColumnType(TypeCode.VECTOR, 4)),
        (CatalogType("json", "json"), ColumnType(TypeCode.JSON, 4)),
    ],
)
def test_types_have_the_form_of_table_maps(found: CatalogType, kind: ColumnType):
    assert column_type(found) == kind


def test_a_large_enum_and_a_large_set_are_wider():
    many = ",".join(f"'{i}'" for i in range(256))
    assert column_type(CatalogType("enum", f"enum({many})", "latin1")).length == 2
    wide = ",".join(f"'{i}'" for i in range(33))
    assert column_type(CatalogType("set", f"set({wide})", "latin1")).length == 8


def test_a_type_that_is_not_known_is_said_to_be():
    with pytest.raises(UnknownTypeError):
        column_type(CatalogType("xmltype", "xmltype"))


@pytest.mark.parametrize(
    ("default", "extra", "is_mariadb", "nullable", "constant"),
    [
        ("'it''s'", "", True, False, "it's"),
        ("NULL", "", True, True, None),
        (None, "", True, False, "none"),
        ("5", "", True, False, "5"),
        ("-1.50", "", True, False, "-1.50"),
        ("current_timestamp(3)", "", True, True, "none"),
        ("concat('a','b')", "", True, True, "none"),
        ("it's", "", False, False, "it's"),
        (None, "", False, True, None),
        (None, "", False, False, "none"),
        ("CURRENT_TIMESTAMP", "DEFAULT_GENERATED on update CURRENT_TIMESTAMP", False, True, "none"),
    ],
)
def test_defaults_are_constants_or_none(default, extra, is_mariadb, nullable, constant):
    assert constant_of(default, extra, is_mariadb=is_mariadb, nullable=nullable, missing="none") == constant


def part(
    index: str, column: str | None, *, is_prefix: bool = False, is_nullable: bool = False, in_key: bool = False
) -> IndexPart:
    return IndexPart(index, column, is_prefix, is_nullable, in_key)


def test_rows_are_told_apart_by_the_primary_key_or_by_a_unique_index_without_nulls():
    primary = [part("PRIMARY", "b"), part("PRIMARY", "a", is_prefix=True)]
    assert keys_of([part("a", "x"), *primary]) == (("b", "a"), ("b", "a"))
    assert keys_of([part("z", "x"), part("y", "u"), part("y", "v")]) == ((), ("x",))
    assert keys_of([part("b", "x"), part("a", "y")]) == ((), ("y",))
    wide = [part("z", "u", in_key=True), part("z", "v", in_key=True)]
    assert keys_of([part("a", "x"), part("b", "u", in_key=True), *wide]) == ((), ("u", "v"))
    for unfit in (part("i", "x", is_nullable=True), part("i", "x", is_prefix=True), part("i", None)):
        assert keys_of([unfit]) == ((), ())
    assert keys_of([]) == ((), ())

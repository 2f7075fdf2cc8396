"""What is executed on the server that both read: `BEFORE` they start, then `WHILE` they run."""

from __future__ import annotations

TYPES = {
    "b1": ("bit(1)", "b'1'"),
    "b12": ("bit(12)", "b'101010101010'"),
    "tiny": ("tinyint", "-128"),
    "flag": ("boolean", "true"),
    "utiny": ("tinyint unsigned", "255"),
    "small": ("smallint", "-32768"),
    "usmall": ("smallint unsigned", "65535"),
    "medium": ("mediumint", "-8388608"),
    "umedium": ("mediumint unsigned", "16777215"),
    "i": ("int", "-2147483648"),
    "ui": ("int unsigned", "4294967295"),
    "big": ("bigint", "-9223372036854775808"),
    "ubig": ("bigint unsigned", "9223372036854775807"),
    "dec_plain": ("decimal", "1234567890"),
    "dec_scaled": ("decimal(12,4)", "-12345678.9012"),
    "dec_long": ("decimal(65,30)", "-12345678901234567890123456789012345.123456789012345678901234567890"),
    "udec": ("decimal(10,2) unsigned", "12345678.91"),
    "f": ("float", "1.5"),
    "d": ("double", "-2.25e100"),
    "y": ("year", "2026"),
    "day": ("date", "'2024-02-29'"),
    "t0": ("time", "'-12:34:56'"),
    "t6": ("time(6)", "'123:45:06.789012'"),
    "dt0": ("datetime", "'2024-02-29 01:02:03'"),
    "dt3": ("datetime(3)", "'2024-02-29 01:02:03.123'"),
    "dt6": ("datetime(6)", "'2024-02-29 01:02:03.123456'"),
    "ts0": ("timestamp null", "'2024-02-29 01:02:03'"),
    "ts6": ("timestamp(6) null", "'2024-02-29 01:02:03.123456'"),
    "c": ("char(5)", "'ab'"),
    "v": ("varchar(40)", "'wörd €'"),
    "vl": ("varchar(40) character set latin1", "'wörd'"),
    "txt": ("text", "'a text'"),
    "long_txt": ("longtext", "repeat('x', 1000)"),
    "bin": ("binary(4)", "x'0102'"),
    "vbin": ("varbinary(10)", "x'00ff00'"),
    "bl": ("blob", "x'00010203'"),
    "e": ("enum('small','a, b','large')", "'a, b'"),
    "s": ("set('one','two','three')", "'one,three'"),
    "j": ("json", """'{"a": [1, 2.5, "x"], "b": null}'"""),
    "u": ("uuid", "'123e4567-e89b-12d3-a456-426614174000'"),
    "pt": ("point", "st_geomfromtext('POINT(1 2)')"),
    "geo": ("geometry", "st_geomfromtext('LINESTRING(0 0, 1 1, 2 2)')"),
}
"""A column of each type, with one value."""
DEFAULTS = (
    "n int default 7",
    "m bigint unsigned not null default 18",
    "price decimal(10,2) not null default 1.50",
    "name varchar(20) default 'none'",
    "at timestamp null default '2024-01-01 00:00:00'",
    "made timestamp not null default current_timestamp",
    "day date default '2024-01-01'",
    "what enum('a','b') not null default 'b'",
    "flag boolean not null default true",
    "f double default 1.25",
    "note text",
)


def every_type(database: str) -> str:
    listed = ", ".join(f"`{name}` {kind}" for name, (kind, _) in TYPES.items())
    return f"create table {database}.types (id int primary key, {listed})"


def typed_row(database: str, number: int) -> str:
    values = ", ".join(value for _, value in TYPES.values())
    return f"insert into {database}.types values ({number}, {values})"


BEFORE = (
    "create database shop character set utf8mb4",
    every_type("shop"),
    typed_row("shop", 1),
    "insert into shop.types (id) values (2)",
    f"create table shop.defaults (id int primary key auto_increment, {', '.join(DEFAULTS)})",
    "insert into shop.defaults (note) values ('first')",
    "create table shop.pairs (a int, b varchar(20), v text, primary key (a, b))",
    "insert into shop.pairs values (1, 'x', 'one'), (2, 'y', 'two')",
    "create table shop.keyless (a int, b text)",
    "insert into shop.keyless values (1, 'one')",
    "create table shop.evolving (id int primary key, v varchar(10) comment 'a value')",
    "insert into shop.evolving values (1, 'a')",
)
WHILE = (
    typed_row("shop", 3),
    "update shop.types set i = 5, txt = null where id = 3",
    "delete from shop.types where id = 3",
    "insert into shop.defaults () values ()",
    "insert into shop.pairs values (3, 'z', 'three')",
    "update shop.pairs set v = 'ONE' where a = 1",
    "update shop.pairs set a = 20 where a = 2",
    "delete from shop.pairs where a = 20",
    "insert into shop.keyless values (2, 'two'), (3, 'three')",
    "update shop.keyless set b = 'TWO' where a = 2",
    "delete from shop.keyless where a = 1",
    "alter table shop.evolving add column n int unsigned not null default 5, add index (v)",
    "insert into shop.evolving values (2, 'b', 6)",
    "alter table shop.evolving modify v varchar(30) not null, add column e enum('x','y') after id",
    "insert into shop.evolving values (3, 'y', 'c', 7)",
    "alter table shop.evolving change column n amount decimal(8,2)",
    "insert into shop.evolving values (4, null, 'd', 1.25)",
    "alter table shop.evolving drop column e",
    "insert into shop.evolving values (5, 'e', 2.5)",
    "create table shop.later (id bigint unsigned primary key, at datetime(3) default current_timestamp(3))",
    "insert into shop.later (id) values (1)",
    "rename table shop.later to shop.latest",
    "insert into shop.latest (id) values (2)",
    "create index of_at on shop.latest (at)",
    "truncate table shop.pairs",
    "insert into shop.pairs values (4, 'w', 'four')",
    "drop table shop.latest",
)
"""Each is a transaction."""
TABLES = {"types": 2, "defaults": 1, "pairs": 2, "keyless": 1, "evolving": 1}
"""How many rows of each are there before."""
TRANSACTION = (
    "begin",
    "insert into shop.pairs values (100, 'q', 'in one')",
    "update shop.types set i = 6 where id = 1",
    "insert into shop.keyless values (100, 'in one')",
    "commit",
)


def is_told_of(statement: str) -> bool:
    """Whether it makes a schema change event."""
    return statement.startswith(("alter", "create", "rename", "drop"))


LAST = "insert into shop.pairs values (9999, 'end', 'end')"

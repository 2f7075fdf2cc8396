"""Tasks that read the log of one real server, one with the native core and one without: the same records, byte for byte."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.mysql.decode.native_rows import native
from cdcworker.connectors.mysql.source.connector import MySqlSource, MySqlTask
from cdcworker.schemas.change import EncodedRecords, JsonObject

from tests.conftest import unless_built
from tests.contract.polled_task import DEADLINE_S
from tests.unit.connectors.native_records import Registry

from ..logged import LoggedServer
from .reading import config_of

pytestmark = [pytest.mark.mysql, unless_built(native())]

COLUMNS = {
    "tiny": ("tinyint", "-7"),
    "flag": ("boolean", "true"),
    "big": ("bigint unsigned", "18446744073709551615"),
    "price": ("decimal(10,2)", "-123.45"),
    "exact": ("decimal(65,30)", "1.000000000000000000000000000001"),
    "ratio": ("double", "-2.5e300"),
    "share": ("float", "0.1"),
    "born": ("date", "'2024-02-29'"),
    "never": ("date", "'0000-00-00'"),
    "at": ("datetime(3)", "'1969-12-31 23:59:59.999'"),
    "stamp": ("timestamp(6) null", "'2024-02-29 12:34:56.789'"),
    "span": ("time(2)", "'-838:59:59.99'"),
    "y": ("year", "1999"),
    "bits": ("bit(11)", "b'10000000001'"),
    "name": ("varchar(300) character set utf8mb4", "'grüß 🙂'"),
    "code": ("char(8) character set latin1", "'é  '"),
    "plain": ("varchar(20) character set latin1", "'ascii'"),
    "wide": ("varchar(20) character set gbk", "'汉字'"),
    "body": ("longtext", "repeat('x', 70000)"),
    "raw": ("varbinary(40)", "unhex('00ff')"),
    "padded": ("binary(6)", "unhex('01')"),
    "mood": ("enum('sad','glad')", "'glad'"),
    "tags": ("set('a','b','c')", "'a,c'"),
    "doc": ("json", """'{"a": [1, 2]}'"""),
    "number": ("uuid", "'7b3d7a2e-0000-4000-8000-000000000000'"),
    "host": ("inet6", "'::1'"),
    "place": ("point", "point(1, 2)"),
}
NAMES = ", ".join(COLUMNS)
VALUES = ", ".join(value for _, value in COLUMNS.values())
STATEMENTS = (
    f"insert into shop.t (id, {NAMES}) values (1, {VALUES}), (2, {VALUES})",
    "insert into shop.t (id) values (3)",
    "update shop.t set name = 'other', price = 1",
    "update shop.t set id = 20 where id = 2",
    "insert into shop.other values (1), (2)",
    "alter table shop.t add column more int default 5",
    "insert into shop.t (id) values (4)",
    "delete from shop.t where id < 4",
    "insert into shop.t (id) select seq from seq_1000_to_3000",
    "for number in 4000..4300 do insert into shop.t (id) values (number); end for",
)
RECORDS = 2 + 1 + 3 + 3 + 1 + 4 + 2001 + 301
"""An update of the key is a deletion with its tombstone and an insertion."""


@contextmanager
def opened(server: LoggedServer, position: JsonObject | None, **more: str) -> Iterator[MySqlTask]:
    config = config_of(server, snapshot__mode="no_data", **more)
    source = MySqlSource({**config, "table.include.list": "shop[.]t", "include.schema.changes": "false"})
    (share,) = source.split(1)
    task = source.task(share, TaskContext("c", 0, 1, "i", "", report=lambda _: None, jobs=list))
    task.open(position)
    try:
        yield task
    finally:
        task.close()


def read(task: MySqlTask, count: int) -> tuple[list[Any], int]:
    """Records, and how many of them the task has encoded itself."""
    registry, items, own = Registry(), list[Any](), 0
    task.use_layouts(registry)
    deadline = time.monotonic() + DEADLINE_S
    made: list[Any] = []
    while len(made) < count:
        assert time.monotonic() < deadline, len(made)
        items = [*task.poll().changes]
        own += sum(len(item.records) for item in items if isinstance(item, EncodedRecords))
        made += registry.produced(items)
    return made, own


@pytest.mark.parametrize(
    "modes", [{}, {"decimal.handling.mode": "string", "time.precision.mode": "connect", "binary.handling.mode": "hex"}]
)
def test_the_records_of_a_real_log_are_those_of_the_decoder(shop: LoggedServer, modes: dict[str, str]) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
    shop.ask(f"create table shop.t (id bigint primary key, {columns})", "create table shop.other (id int)")
    modes = {name.replace(".", "__"): value for name, value in modes.items()}
    with opened(shop, None) as task:
        begin = task.poll().position
    shop.ask("use shop", "set sql_mode = ''", *STATEMENTS)
    with opened(shop, begin, **modes) as task:
        found, own = read(task, RECORDS)
    with opened(shop, begin, decoder__native="false", **modes) as task:
        expected, none = read(task, RECORDS)
    assert found == expected
    assert none == 0
    # All but the two records of the key that changed, and its tombstone.
    assert own == RECORDS - 3

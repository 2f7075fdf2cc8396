"""Logs that lack what a statement does not name: values that were not sent are marked, and rows that nobody has whole are read again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cdcworker.connectors.mysql import errors as e
from cdcworker.schemas.errors import CdcError

from tests.contract.polled_task import materialise

from ..decode.decoded import variable
from ..logged import LoggedServer
from .reading import Reading

pytestmark = pytest.mark.mysql
MakeReading = Callable[..., Reading]
COLUMNS = (
    "id int auto_increment primary key, c int default 5, e int default (1 + 1), n int not null, g int as (c + 1) stored,"
    " w int as (c + 2) virtual, b longtext default 'bb', x varchar(9) default 'x'"
)
STATEMENTS = (
    "insert into shop.a() values ()",
    "insert into shop.a(c) values (7), (default)",
    "alter table shop.a alter c set default 6",
    "insert into shop.a(n) select 3",
    "insert into shop.a(id) values (2) on duplicate key update x = 'd'",
    "update shop.a set c = 9 where id = 3",
    "update shop.a set b = 'new' where id = 1",
    "begin",
    "insert into shop.a(id, n) values (50, 1)",
    "update shop.a set id = 51, c = 8 where id = 50",
    "delete from shop.a where id = 2",
    "update shop.a set c = 77 where id = 1",
    "insert into shop.a(id) values (2)",
    "commit",
    # Logged as an update that does not say that c has its default again.
    "replace into shop.a(id, b, x) values (1, 'bb', 'r')",
)


def written(server: LoggedServer) -> None:
    server.ask("set sql_mode = ''", *STATEMENTS)


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_readers_have_each_row_whole_in_the_end_and_null_is_never_said(
    shop: LoggedServer, reading: MakeReading, image: str
) -> None:
    shop.ask(f"create table shop.a({COLUMNS})", "insert into shop.a(n) values (1)")
    with variable(shop, "binlog_row_image", f"'{image}'"):
        one = reading(shop).start()
        one.until_loaded()
        written(shop)
        one.until(lambda: str(one.position["gtids"]) == str(shop.position()) and one.loaded())
    rows = materialise(one.log)["shop", "a"]
    found = {key[0]: tuple(row.values()) for key, row in rows.items() if key[0] != "moved"}
    assert found == {row[0]: row for row in shop.ask("select * from shop.a")}
    for change in one.log:
        # No value of these statements is null: what looks like it was not sent.
        assert change.after is None or all(
            i in change.unchanged for i, value in enumerate(change.after) if value is None
        )
    if image == "NOBLOB":
        inserted = [change for change in one.log if change.op == "c" and change.other_key is None]
        assert [change.unchanged for change in inserted] == [()] * len(inserted)


@pytest.mark.parametrize(
    ("columns", "mode", "why"),
    [("id int primary key, v int default 5", "no_data", "no rows are read of the table")],
)
def test_an_insert_that_nobody_can_make_whole_is_refused(
    shop: LoggedServer, reading: MakeReading, columns: str, mode: str, why: str
) -> None:
    shop.ask(f"create table shop.a({columns})")
    with variable(shop, "binlog_row_image", "'MINIMAL'"):
        one = reading(shop, snapshot__mode=mode).start()
        one.until(lambda: one.position)
        shop.ask("insert into shop.a values (1, 7)")
        one.until(lambda: one.log)
        shop.ask("insert into shop.a(id) values (2)")
        with pytest.raises(CdcError) as caught:
            one.until(lambda: False)
    assert (caught.value.code, caught.value.where["table"]) == (e.ROW_IMAGE, "shop.a")
    assert why in caught.value.message


@pytest.mark.parametrize("image", ["MINIMAL", "FULL"])
def test_of_several_unique_indexes_rows_and_stream_have_the_one_whose_columns_the_server_logs(
    shop: LoggedServer, reading: MakeReading, image: str
) -> None:
    shop.ask("create table shop.a(b int not null, c int not null, a int not null, unique z(b, c), unique a(a))")
    shop.ask("insert into shop.a values (2, 3, 1), (5, 6, 4), (8, 9, 7)")
    with variable(shop, "binlog_row_image", f"'{image}'"):
        one = reading(shop).start()
        one.until_loaded()
        shop.ask("delete from shop.a where a = 1", "update shop.a set c = 66 where a = 4")
        shop.ask("update shop.a set a = 77 where b = 8", "insert into shop.a values (11, 12, 10)")
        one.until(lambda: str(one.position["gtids"]) == str(shop.position()) and one.loaded())
    rows = materialise(one.log)["shop", "a"]
    assert {change.table.key for change in one.log} == {(0, 1)}
    assert {key: tuple(row.values()) for key, row in rows.items()} == {
        (b, c): (b, c, a) for b, c, a in shop.ask("select * from shop.a")
    }

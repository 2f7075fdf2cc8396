"""One task over a real MariaDB server: rows, the stream behind them, and what is left after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cdcworker.connectors.capture.stream import limits
from cdcworker.connectors.mysql.source.task import MySqlTask
from cdcworker.schemas.errors import CdcError

from tests.contract.polled_task import DEADLINE_S

from ..decode.decoded import variable
from ..logged import LoggedServer
from .reading import Reading, config_of

pytestmark = pytest.mark.mysql
ROWS = 2_000
MakeReading = Callable[..., Reading]


def values(*numbers: int) -> str:
    return ",".join(f"({number}, 'v{number}')" for number in numbers)


def table(server: LoggedServer, name: str = "t", rows: int = 3) -> None:
    server.ask(f"create table shop.{name} (id int primary key, v varchar(20))")
    if rows:
        server.ask(f"insert into shop.{name} values {values(*range(rows))}")


# -- killed and started again -----------------------------------------------------------------------------------------


class Child:
    """A task in a process of its own. `stored` is what Kafka would hold: the items and the last position."""

    def __init__(self, config: dict[str, str]) -> None:
        self._config = config
        self.items: list[Any] = []
        self.position: Any = None
        self.kills = 0

    def run(self, lines: int | None, *, done: Callable[[], bool] = lambda: False) -> None:
        """Runs the task until it has stored so many positions, or `done` holds; then kills it."""
        with self._process() as process:
            assert process.stdin
            assert process.stdout
            process.stdin.write(json.dumps([self._config, self.position]) + "\n")
            process.stdin.flush()
            watchdog = threading.Timer(DEADLINE_S, process.kill)
            watchdog.start()
            try:
                while lines != 0 and not done():
                    line = process.stdout.readline()
                    assert line.endswith("\n"), "the task has ended by itself"
                    items, self.position = json.loads(line)
                    self.items += items
                    lines = None if lines is None else lines - 1
            finally:
                watchdog.cancel()
        self.kills += 1

    def count(self, op: str) -> int:
        return sum(item[2] == op for item in self.items)

    @contextmanager
    def _process(self) -> Iterator[subprocess.Popen[str]]:
        package = __package__ or ""
        root = Path(__file__).parents[len(package.split("."))]
        argv = [sys.executable, "-m", f"{package}.child"]
        with subprocess.Popen(argv, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


def test_each_row_comes_once_and_in_order_whatever_is_killed(shop: LoggedServer) -> None:
    table(shop, rows=0)
    shop.ask(f"insert into shop.t values {values(*range(ROWS))}")
    child = Child(config_of(shop, snapshot__chunk__max__bytes="4096", snapshot__inflight__max__bytes="8192"))
    for lines in (1, 3, 2):
        child.run(lines)
        # Rows that no chunk brings twice: they are only in the log.
        shop.ask(*(f"insert into shop.t values {values(ROWS + 10 * child.kills + n)}" for n in range(3)))
    behind = [ROWS + 10 * kill + n for kill in (1, 2, 3) for n in range(3)]
    child.run(None, done=lambda: child.count("c") == len(behind) and not child.position["snapshot"].get("loads"))
    assert child.kills == 4
    streamed = [row[0] for _, _, op, row in child.items if op == "c"]
    assert streamed == behind
    read = [row[0] for _, _, op, row in child.items if op == "r"]
    assert len(set(read)) == len(read)
    assert set(range(ROWS)) <= set(read)
    places = [tuple(place) for place, *_ in child.items]
    assert all(one < other for one, other in pairwise(places))


def test_a_task_goes_on_from_its_position(shop: LoggedServer, reading: MakeReading) -> None:
    table(shop)
    one = reading(shop).start()
    one.until_loaded()
    assert one.rows("t") == [("r", (n, f"v{n}")) for n in range(3)]
    assert one.position is not None
    assert (one.position["product"], one.position["gtids"]) == ("mariadb", str(shop.position()))
    one.stop()
    shop.ask(f"insert into shop.t values {values(7, 8)}", "update shop.t set v = 'new' where id = 1")
    one.start()
    one.until(lambda: len(one.changes) == 6)
    assert one.rows("t")[3:] == [("c", (7, "v7")), ("c", (8, "v8")), ("u", (1, "new"))]
    again = one.again()
    shop.ask("delete from shop.t where id = 0")
    again.until(lambda: len(again.changes) == 7)
    assert again.rows("t")[6:] == [("d", (0, "v0"))]
    assert again.places() == sorted(set(again.places()))
    assert again.position is not None
    assert again.position["gtids"] == str(shop.position())
    assert (again.position["file"], again.position["pos"]) == shop.ask("show master status")[0][:2]


def test_a_transaction_that_outgrows_a_batch_is_resumed_inside(
    shop: LoggedServer, reading: MakeReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BATCH_CHANGES_MAX", 50)
    table(shop, rows=0)
    one = reading(shop, provide__transaction__metadata="true").start()
    one.until_loaded()
    shop.ask(
        "begin", *(f"insert into shop.t values {values(*range(at, at + 20))}" for at in range(0, 400, 20)), "commit"
    )
    one.until(lambda: one.part)
    one.store_part()
    given = len(one.rows("t"))
    assert 0 < given < 400
    assert one.position is not None
    assert one.position["v"] == 2
    one.again()
    shop.ask(f"insert into shop.t values {values(1000)}")
    one.until(lambda: len(one.rows("t")) == 401)
    assert one.rows("t") == [("c", (n, f"v{n}")) for n in [*range(400), 1000]]
    places = [change.position for change in one.changes if change.table.path == ("shop", "t")]
    assert places == sorted(set(places))
    assert len({place.commit for place in places}) == 2
    ends = [change.after for change in one.changes if change.table.path == ("transaction",)]
    assert [(row[0], row[2]) for row in ends] == [("BEGIN", None), ("END", 400), ("BEGIN", None), ("END", 1)]


def test_a_server_that_was_restarted_is_read_on(shop: LoggedServer, reading: MakeReading) -> None:
    table(shop)
    one = reading(shop).start()
    one.until_loaded()
    shop.restart()
    with pytest.raises(CdcError) as caught:
        one.until(lambda: False)
    assert caught.value.retriable
    shop.ask(f"insert into shop.t values {values(4)}", "flush binary logs", f"insert into shop.t values {values(5)}")
    one.again().until(lambda: len(one.changes) == 5)
    assert one.rows("t")[3:] == [("c", (4, "v4")), ("c", (5, "v5"))]


# -- beside the stream ------------------------------------------------------------------------------------------------


def test_heartbeats_come_with_positions_and_run_their_statement(shop: LoggedServer, reading: MakeReading) -> None:
    table(shop, "beats")
    table(shop)
    statement = "insert into shop.beats (id, v) select max(id) + 1, 'beat' from shop.beats"
    one = reading(shop, heartbeat__interval__ms="50", heartbeat__action__query=statement).start()
    one.until(lambda: sum(c.table.path == ("heartbeat",) for c in one.changes) > 2 and len(one.rows("beats")) > 4)
    beat = next(change for change in one.changes if change.table.path == ("heartbeat",))
    assert beat.after is not None
    assert beat.after[0] == "p"
    assert beat.table.plain is not None
    assert beat.table.plain.topic == "__debezium-heartbeat.p"
    one.config["heartbeat.action.query"] = "insert into shop.none values (1)"
    one.again().until(lambda: one.reports[-1].get("heartbeat_action_failures"))
    assert one.reports[-1]["heartbeat_action_error"] == "mysql.server_error"


def test_an_idle_task_stores_that_it_has_moved_on(shop: LoggedServer, reading: MakeReading, monkeypatch: Any) -> None:
    table(shop)
    shop.ask("create database if not exists aside", "create or replace table aside.t (id int)")
    one = reading(shop).start()
    one.until_loaded()
    assert isinstance(one.task, MySqlTask)
    monkeypatch.setattr(one.task._pace, "_interval_s", 0.0)
    shop.ask("insert into aside.t values (1)")
    one.until(lambda: one.position and one.position["gtids"] == str(shop.position()))
    before = one.watermark
    assert one.position is not None
    assert before["commit_lsn"] == one.position["number"] + 1
    one.until(lambda: one.watermark["ts_ms"] > before["ts_ms"])
    assert len(one.changes) == 3


def test_a_row_of_the_signal_table_asks_for_a_snapshot(shop: LoggedServer, reading: MakeReading) -> None:
    table(shop)
    shop.ask("create table shop.signals (id varchar(40) primary key, type varchar(40), data varchar(2000))")
    one = reading(shop, signal__data__collection="shop.signals").start()
    one.until_loaded()
    data = json.dumps({"data-collections": ["shop.t"]})
    shop.ask(f"insert into shop.signals values ('s1', 'execute-snapshot', '{data}')")
    one.until(lambda: any(done["id"] == "s1" for done in one.progress.get("done", ())))
    assert one.rows("t") == 2 * [("r", (n, f"v{n}")) for n in range(3)]


def test_a_request_for_a_snapshot_is_carried_out_once(shop: LoggedServer, reading: MakeReading) -> None:
    table(shop)
    one = reading(shop).start()
    one.until_loaded()
    one.jobs = [{"id": "j1", "kind": "snapshot", "wanted": "RUNNING", "spec": {"tables": ["shop.t"]}, "own": True}]
    one.until(lambda: any(done["id"] == "j1" for done in one.progress.get("done", ())))
    one.again()
    for _ in range(5):
        one.poll()
    assert one.rows("t") == 2 * [("r", (n, f"v{n}")) for n in range(3)]


def test_a_table_without_a_key_is_read_whole_and_then_streamed(shop: LoggedServer, reading: MakeReading) -> None:
    shop.ask("create table shop.k (v int)", "insert into shop.k values (1), (1), (2)")
    one = reading(shop).start()
    one.until_loaded()
    assert one.rows("k") == [("r", (1,)), ("r", (1,)), ("r", (2,))]
    shop.ask("insert into shop.k values (1)", "delete from shop.k where v = 2")
    one.until(lambda: len(one.changes) == 5)
    assert one.rows("k")[3:] == [("c", (1,)), ("d", (2,))]


def test_a_row_without_values_is_read_again_under_its_new_key(shop: LoggedServer, reading: MakeReading) -> None:
    table(shop)
    with variable(shop, "binlog_row_image", "'MINIMAL'"):
        one = reading(shop).start()
        one.until_loaded()
        shop.ask("update shop.t set id = 9 where id = 1")
        one.until(lambda: one.rows("t")[-1][0] == "r" and len(one.changes) == 6)
    gone, made, read = one.changes[3:]
    assert (gone.op, gone.before) == ("d", (1, None))
    assert (made.op, made.after, made.unchanged) == ("c", (9, None), (1,))
    assert (read.op, read.after) == ("r", (9, "v1"))


def test_tables_that_come_into_view_are_loaded(shop: LoggedServer, reading: MakeReading) -> None:
    table(shop)
    table(shop, "u", 2)
    one = reading(shop, table__include__list="shop.t,shop.w", table__discovery__interval__ms="50").start()
    one.until_loaded()
    table(shop, "w", 2)
    one.until(lambda: one.state("w") == {n: (n, f"v{n}") for n in range(2)} and not one.progress.get("loads"))
    one.config["table.include.list"] = "shop.t,shop.u,shop.w"
    one.again().until(lambda: one.rows("u") and not one.progress.get("loads"))
    assert one.rows("u") == [("r", (0, "v0")), ("r", (1, "v1"))]
    assert len(one.rows("t")) == 3


def test_a_table_that_was_away_is_emptied_and_read_again(shop: LoggedServer, reading: MakeReading) -> None:
    table(shop)
    table(shop, "u", 2)
    one = reading(shop).start()
    one.until_loaded()
    one.config["table.exclude.list"] = "shop.u"
    one.again().until(lambda: len(one.progress["loaded"]) == 1)
    shop.ask("delete from shop.u where id = 0", f"insert into shop.t values {values(5)}")
    one.until(lambda: len(one.rows("t")) == 4)
    del one.config["table.exclude.list"]
    one.again().until(lambda: len(one.progress["loaded"]) == 2)
    assert one.rows("u") == [("r", (0, "v0")), ("r", (1, "v1")), ("t", None), ("r", (1, "v1"))]
    assert one.places() == sorted(set(one.places()))


def test_only_rows_are_read_where_that_is_asked_for(shop: LoggedServer, reading: MakeReading) -> None:
    table(shop)
    one = reading(shop, snapshot__mode="initial_only").start()
    one.until_loaded()
    shop.ask(f"insert into shop.t values {values(9)}")
    for _ in range(2):
        one.poll()
        one.again()
    one.poll()
    assert one.rows("t") == [("r", (n, f"v{n}")) for n in range(3)]


def test_no_rows_are_read_where_that_is_asked_for(shop: LoggedServer, reading: MakeReading) -> None:
    table(shop)
    one = reading(shop, snapshot__mode="no_data").start()
    one.until(lambda: one.position)
    shop.ask(f"insert into shop.t values {values(9)}")
    one.until(lambda: one.changes)
    assert one.rows("t") == [("c", (9, "v9"))]


# -- tables that are held back ----------------------------------------------------------------------------------------


def test_a_table_that_changes_is_held_back_while_others_go_on(shop: LoggedServer, reading: MakeReading) -> None:
    table(shop)
    table(shop, "u", 1)
    one = reading(shop, schema__change__policy="pause-table").start()
    one.until_loaded()
    shop.ask(f"insert into shop.t values {values(3)}")
    one.until(lambda: len(one.changes) == 5)
    shop.ask(
        "alter table shop.t add n int",
        "insert into shop.t values (4, 'x', 5)",
        f"insert into shop.u values {values(7)}",
    )
    with pytest.raises(CdcError) as caught:
        one.until(lambda: False)
    error = caught.value
    assert (error.code, error.where["table"]) == ("mysql.schema_paused", "shop.t")
    assert isinstance(one.task, MySqlTask)
    assert one.task.holds(error)
    one.stop()
    one.start({"shop.t": error})
    one.until(lambda: len(one.rows("u")) == 2)
    assert len(one.rows("t")) == 4
    assert one.position is not None
    assert list(one.position["quarantine"]) == ["shop.t"]
    one.jobs = [{"id": "j2", "kind": "snapshot", "wanted": "RUNNING", "spec": {"tables": ["shop.t"]}, "own": True}]
    with pytest.raises(CdcError) as caught:
        one.until(lambda: False)
    assert caught.value.code == "mysql.table_returns"
    one.again().until(lambda: one.state("t").get(4))
    assert one.state("t")[4] == (4, "x", 5)
    assert ("t", None) in one.rows("t")

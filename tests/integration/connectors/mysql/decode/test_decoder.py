"""Changes that are made of the log of a real server: rows, keys, positions, and what is not handed on."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from cdcworker.connectors.capture.snapshot.observer import RowEvent
from cdcworker.connectors.capture.stream.transaction_metadata import TransactionMetadata
from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.binlog.plain_events import Query
from cdcworker.connectors.mysql.decode.commit_numbers import CommitNumbers
from cdcworker.connectors.mysql.decode.row_writer import DecoderOptions
from cdcworker.schemas.change import Change
from cdcworker.schemas.errors import CdcError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ..logged import LoggedServer
from ..types.test_values import CASES
from .decoded import SCHEMA, brief, log_of, places, variable

pytestmark = pytest.mark.mysql
T = "create or replace table t (id int primary key, v varchar(9), n int)"


def test_rows_become_changes_with_the_source_block_and_their_positions(logged: LoggedServer) -> None:
    log = log_of(
        logged, T, "begin", "insert into t values (1, 'a', 1), (2, 'b', null)", "update t set v = 'c' where id = 1",
        "delete from t where id = 2", "commit", "insert into t values (3, 'd', 3)",
    )  # fmt: skip
    changes = log.changes(DecoderOptions(shows_query=True))
    assert brief(changes) == [
        ("c", None, (1, "a", 1)),
        ("c", None, (2, "b", None)),
        ("u", (1, "a", 1), (1, "c", 1)),
        ("d", (2, "b", None), None),
        ("c", None, (3, "d", 3)),
    ]
    assert places(changes) == [(0, 0), (1, 0), (2, 0), (3, 0), (0, 0)]
    first, last = changes[0], changes[-1]
    assert first.table.path == ("shop", "t")
    assert [first.table.columns[i].name for i in first.table.key] == ["id"]
    assert [change.position.commit for change in changes[:4]] == [first.position.commit] * 4
    assert last.position > first.position
    source = changes[1].source
    assert {name: source[name] for name in ("db", "table", "row", "tx_index", "tx_sub")} == {
        "db": "shop", "table": "t", "row": 1, "tx_index": 1, "tx_sub": 0,
    }  # fmt: skip
    assert source["commit_lsn"] == first.position.commit
    assert source["gtid"].startswith("3-7-")
    assert last.source["gtid"] == str(logged.position())
    assert source["file"].startswith("log.")
    assert source["pos"] > 4
    assert source["query"] == "insert into t values (1, 'a', 1), (2, 'b', null)"
    assert source["ts_ms"] * 1000 == source["ts_us"]


def test_a_new_key_is_a_delete_and_a_create(logged: LoggedServer) -> None:
    log = log_of(logged, T, "insert into t values (1, 'a', 1)", "update t set id = 5, v = 'b' where id = 1")
    _, gone, made = log.changes()
    assert brief([gone, made]) == [("d", (1, "a", 1), None), ("c", None, (5, "b", 1))]
    assert (gone.other_key, made.other_key) == ((5,), (1,))
    assert places([gone, made]) == [(0, 0), (0, 1)]
    assert made.source["tx_sub"] == 1


def test_values_that_were_not_logged_are_marked_and_never_null(logged: LoggedServer) -> None:
    with variable(logged, "binlog_row_image", "'MINIMAL'"):
        log = log_of(
            logged, T, "insert into t values (1, 'a', 1), (2, 'b', 2)", "update t set v = 'c' where id = 1",
            "update t set id = 7 where id = 2", "delete from t where id = 1",
        )  # fmt: skip
        changes = log.changes(whole_rows=False)[2:]
    updated, gone, made, deleted = changes
    assert brief(changes) == [
        ("u", None, (1, "c", None)),
        ("d", (2, None, None), None),
        ("c", None, (7, None, None)),
        ("d", (1, None, None), None),
    ]
    assert (updated.unchanged, gone.unchanged, made.unchanged, deleted.unchanged) == ((2,), (), (1, 2), ())
    assert (gone.other_key, made.other_key) == ((7,), (2,))


def test_a_truncate_is_one_of_captured_tables_only(logged: LoggedServer) -> None:
    log = log_of(
        logged, T, "create or replace table other (a int)", "insert into t values (1, 'a', 1)", "truncate table other",
        "truncate `t`", table__exclude__list=r"shop\.other",
    )  # fmt: skip
    changes = log.changes()
    assert brief(changes) == [("c", None, (1, "a", 1)), ("t", None, None)]
    assert changes[1].table.path == ("shop", "t")
    assert changes[1].position > changes[0].position


def test_rows_of_other_tables_are_counted_whatever_their_types_are(logged: LoggedServer) -> None:
    with variable(logged, "binlog_row_metadata", "'NO_LOG'"):
        log = log_of(
            logged,
            T,
            "create or replace table other (id int unsigned, e enum('a'), s set('a', 'b'), j json, c char(9), b bit(9),"
            " d decimal(9,2), t text, u uuid, g point)",
            "begin",
            "insert into other values (1, 'a', 'a,b', '[1]', 'x', 5, 1.5, 'long', uuid(), point(1, 2)), (2, null, '', null,"
            " null, null, null, null, null, null)",
            "insert into t values (1, 'a', 1)",
            "commit",
            table__exclude__list=r"shop\.other",
        )
        changes = log.changes()
    assert brief(changes) == [("c", None, (1, "a", 1))]
    assert places(changes) == [(2, 0)]


def test_columns_that_are_left_out_masked_or_the_key_of_messages(logged: LoggedServer) -> None:
    log = log_of(
        logged,
        "create or replace table m (id int primary key, secret varchar(9), name varchar(20), n int default 7)",
        "insert into m values (1, 'hunter2', 'abcdef', 3)",
        "update m set name = 'xyz' where id = 1",
        **{
            "column__exclude__list": r"shop\.m\.n",
            "column.mask.with.3.chars": r"shop\.m\.secret",
            "column.truncate.to.2.chars": r"shop\.m\.name",
            "message__key__columns": "shop.m:secret",
        },
    )
    with pytest.raises(CdcError) as caught:
        log.changes()
    assert caught.value.code == e.MASK_UNFIT
    log.settings = type(log.settings)(**{**vars(log.settings), "keys": type(log.settings.keys)()})
    changes = log.changes()
    assert brief(changes) == [("c", None, (1, "***", "ab")), ("u", (1, "***", "ab"), (1, "***", "xy"))]
    assert [column.name for column in changes[0].table.columns] == ["id", "secret", "name"]


def test_a_message_key_needs_columns_that_old_rows_have(logged: LoggedServer) -> None:
    log = log_of(logged, T, "insert into t values (1, 'a', 1)", message__key__columns="shop.t:v")
    (change,) = log.changes()
    assert [change.table.columns[i].name for i in change.table.key] == ["v"]
    with pytest.raises(CdcError) as caught:
        log.changes(whole_rows=False)
    assert caught.value.code == e.MESSAGE_KEY


def test_skipped_operations_and_updates_without_a_change(logged: LoggedServer) -> None:
    log = log_of(
        logged,
        T,
        "insert into t values (1, 'a', 1)",
        "update t set n = 2",
        "delete from t",
        column__exclude__list=r".*\.n",
    )
    assert [change.op for change in log.changes(DecoderOptions(skips_same=True))] == ["c", "d"]
    assert [change.op for change in log.changes(DecoderOptions(skipped=frozenset("cd")))] == ["u"]


def test_a_table_that_changes_amid_the_stream_has_each_row_in_its_shape(logged: LoggedServer) -> None:
    log = log_of(
        logged, T, "insert into t values (1, 'a', 1)", "alter table t drop column v, add w text first",
        "insert into t (id, w) values (2, 'b')",
    )  # fmt: skip
    first, second = log.changes()
    assert (first.after, second.after) == ((1, "a", 1), ("b", 2, None))
    assert [column.name for column in second.table.columns] == ["w", "id", "n"]


def test_what_is_rolled_back_is_not_handed_on(logged: LoggedServer) -> None:
    log = log_of(
        logged,
        T,
        "create or replace table loose (a int) engine = MyISAM",
        "begin",
        "insert into t values (1, 'a', 1)",
        "insert into loose values (1)",
        "rollback",
        "begin",
        "insert into t values (2, 'b', 2)",
        "savepoint s",
        "insert into t values (3, 'c', 3)",
        "insert into loose values (2)",
        "rollback to s",
        "insert into t values (4, 'd', 4)",
        "commit",
    )
    found = log.changes()
    assert [change.after for change in found if change.table.path[1] == "t"] == [(2, "b", 2), (4, "d", 4)]
    assert [change.after for change in found if change.table.path[1] == "loose"] == [(1,), (2,)]


@pytest.mark.parametrize("statement", ["insert into t values (9, 'x', 9)", "update t set n = n + 1", "delete from t"])
def test_a_statement_that_changes_rows_without_logging_them_is_refused(logged: LoggedServer, statement: str) -> None:
    log = log_of(logged, T, "insert into t values (1, 'a', 1)", "set session binlog_format = 'STATEMENT'", statement)
    with pytest.raises(CdcError) as caught:
        log.changes()
    assert (caught.value.code, caught.value.where["table"]) == (e.STATEMENT_LOGGED, "shop.t")
    assert "9" not in caught.value.message


def test_xa_in_two_phases_is_refused_and_in_one_it_is_a_transaction(logged: LoggedServer) -> None:
    log = log_of(logged, T, "xa start 'a'", "insert into t values (1, 'a', 1)", "xa end 'a'", "xa commit 'a' one phase")
    assert brief(log.changes()) == [("c", None, (1, "a", 1))]
    log = log_of(
        logged, "xa start 'b'", "insert into t values (2, 'b', 2)", "xa end 'b'", "xa prepare 'b'", "xa commit 'b'"
    )
    with pytest.raises(CdcError) as caught:
        log.changes()
    assert caught.value.code == e.XA_PREPARED


def test_a_replay_has_the_same_positions_and_numbers_rise_behind_what_was_stored(logged: LoggedServer) -> None:
    log = log_of(logged, T, *(f"insert into t values ({i}, 'a', {i})" for i in range(4)))
    first = [change.position for change in log.changes()]
    log.numbers = CommitNumbers()
    assert [change.position for change in log.changes()] == first
    assert len({position.commit for position in first}) == len(first)
    assert first == sorted(first)
    # A server whose clock is behind, as another one may be after a failover.
    log.numbers = CommitNumbers(first[-1].commit + 10**12)
    assert all(change.position.commit > first[-1].commit + 10**12 for change in log.changes())


def test_a_transaction_is_resumed_behind_the_rows_that_were_handed_on(logged: LoggedServer) -> None:
    log = log_of(
        logged, T, "begin", "insert into t values (1, 'a', 1), (2, 'a', 2), (3, 'a', 3)", "update t set n = 0 where id < 3",
        "delete from t where id = 3", "commit", "insert into t values (9, 'z', 9)",
    )  # fmt: skip
    whole = log.changes()
    for done in range(7):
        log.numbers = CommitNumbers()
        decoder, events = log.decoder()
        # The stream begins with the transaction, behind the one that made the table.
        begin = max(i for i, event in enumerate(events) if isinstance(event.body, Query)) + 1
        log.numbers.last = whole[0].position.commit - 1
        decoder.resume(done)
        for event in events[begin:]:
            decoder.feed(event)
        assert [(c.op, c.position) for c in decoder.take()] == [
            (c.op, c.position) for c in whole if c.after == (9, "z", 9) or c.position.event >= done
        ]


class Watching:
    """An observer that leaves out what has an even key."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def began(self, transaction: Any) -> None:
        self.seen.append(("began", transaction))

    def event(self, plan: Any, event: RowEvent) -> bool:
        self.seen.append((event.op, event.before, event.after, event.unchanged, event.key_changed))
        row = event.after or event.before
        return row is None or row[0] % 2 == 1

    def undone(self) -> None:
        self.seen.append(("undone",))

    def reshaped(self, plan: Any) -> None:
        self.seen.append(("reshaped", plan.table.path))


def test_an_observer_sees_every_event_and_may_leave_it_out(logged: LoggedServer) -> None:
    log = log_of(logged, T, "insert into t values (1, 'a', 1), (2, 'b', 2)", "update t set id = 3 where id = 1")
    decoder, events = log.decoder()
    decoder.observer = watching = Watching()
    taken: list[tuple[Any, ...]] = []
    decoder.listeners["shop.t"] = lambda plan, row: taken.append(row)
    for event in events:
        decoder.feed(event)
    assert brief([c for c in decoder.take() if isinstance(c, Change)]) == [
        ("c", None, (1, "a", 1)),
        ("d", (1, "a", 1), None),
        ("c", None, (3, "a", 1)),
    ]
    rows = [seen for seen in watching.seen if seen[0] in "cud"]
    assert rows == [
        ("c", None, (1, "a", 1), (), False),
        ("c", None, (2, "b", 2), (), False),
        ("u", (1, "a", 1), (3, "a", 1), (), True),
    ]
    assert ("reshaped", ("shop", "t")) in watching.seen
    assert watching.seen[-2] == ("began", str(logged.position()))
    assert taken == [(1, "a", 1), (2, "b", 2)]


def test_the_ends_of_transactions_are_told(logged: LoggedServer) -> None:
    log = log_of(logged, T, "insert into t values (1, 'a', 1), (2, 'b', 2)")
    begin, first, second, end = log.changes(DecoderOptions(transactions=TransactionMetadata("p.transaction", SCHEMA)))
    gtid = str(logged.position())
    assert begin.after[:2] == ("BEGIN", gtid)
    assert end.after[:3] == ("END", gtid, 2)
    assert (first.transaction["total_order"], second.transaction["total_order"]) == (1, 2)


GROUP = 20


def is_beyond_nanoseconds(value: Any) -> bool:
    return isinstance(value, dt.datetime) and not 1678 <= value.year <= 2261


def check_every_type(server: LoggedServer, first: int, examples: int, **mode: str) -> None:
    """Each change is written by its table's schema."""
    cases = CASES[first : first + GROUP]
    table = f"all_{first}"

    @settings(max_examples=examples, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(*(case.values for case in cases)), min_size=1, max_size=8))
    def check(rows: list[tuple[Any, ...]]) -> None:
        if mode.get("time__precision__mode") == "nanoseconds":
            # What 64 bits do not hold holds its table back.
            rows = [tuple(None if is_beyond_nanoseconds(value) else value for value in row) for row in rows]
        columns = "".join(f", v{i} {case.column}" for i, case in enumerate(cases))
        stored = ",".join(
            f"({n},{','.join(case.literal(value) for case, value in zip(cases, row, strict=True))})"
            for n, row in enumerate(rows)
        )
        log = log_of(
            server, "set time_zone = '+00:00', sql_mode = 'ALLOW_INVALID_DATES'",
            f"create or replace table {table} (id int primary key{columns})", f"insert ignore into {table} values {stored}",
            **mode,
        )  # fmt: skip
        assert len(log.changes()) == len(rows)

    check()


@pytest.mark.parametrize("first", range(0, len(CASES), GROUP))
def test_values_of_every_type_are_of_their_schemas(logged: LoggedServer, first: int) -> None:
    check_every_type(logged, first, 1)


@pytest.mark.long
@pytest.mark.parametrize("time", ["connect", "isostring", "microseconds", "nanoseconds", "adaptive_time_microseconds"])
@pytest.mark.parametrize("decimal", ["string", "double", "precise"])
def test_values_of_every_type_are_of_their_schemas_in_each_mode(logged: LoggedServer, time: str, decimal: str) -> None:
    for first in range(0, len(CASES), GROUP):
        modes = {"time__precision__mode": time, "decimal__handling__mode": decimal, "binary__handling__mode": "hex"}
        check_every_type(logged, first, 5, **modes)

"""Changes that are made of the log of a genuine MySQL 9.7.4, and what a decoder refuses."""

from __future__ import annotations

import io

import fastavro
import pytest
from cdcworker.connectors.capture.snapshot.observer import PlansTable, RowEvent
from cdcworker.connectors.capture.snapshot.visibility import TransactionId
from cdcworker.connectors.capture.stream.transaction_metadata import TransactionMetadata
from cdcworker.connectors.mysql import errors as e
from cdcworker.connectors.mysql.binlog.event_reader import Event, EventPlace, EventReader
from cdcworker.connectors.mysql.binlog.format_description import Checksum
from cdcworker.connectors.mysql.binlog.gtid_events import XaId
from cdcworker.connectors.mysql.binlog.header import EventHeader
from cdcworker.connectors.mysql.binlog.plain_events import Incident, Query, XaPrepare
from cdcworker.connectors.mysql.binlog.rows import BinlogRow, Operation, RowsEvent
from cdcworker.connectors.mysql.binlog.table_map import Column, KeyPart, TableMap
from cdcworker.connectors.mysql.catalog.completion import TableCatalog
from cdcworker.connectors.mysql.config.settings import parse
from cdcworker.connectors.mysql.decode.captured_plans import CapturedPlans
from cdcworker.connectors.mysql.decode.commit_numbers import CommitNumbers
from cdcworker.connectors.mysql.decode.decoder import BinlogDecoder
from cdcworker.connectors.mysql.decode.row_writer import DecoderOptions
from cdcworker.connectors.mysql.decode.table_plan import TablePlanner
from cdcworker.connectors.mysql.source_block import source_schema
from cdcworker.connectors.mysql.types.column import ColumnType, TypeCode
from cdcworker.connectors.mysql.types.declared import Geometry
from cdcworker.schemas import avro
from cdcworker.schemas.change import Change
from cdcworker.schemas.envelope import change_value, value_schema
from cdcworker.schemas.errors import CdcError

from ..binlog import made

CONFIG = {
    "name": "shop",
    "connector.class": "io.debezium.connector.mysql.MySqlConnector",
    "database.hostname": "h",
    "database.user": "u",
    "database.server.id": "1",
    "topic.prefix": "p",
}
TEMPLATE = {"version": "v", "connector": "mysql", "name": "p", "snapshot": "false", "sequence": None}


def plans_of(**more: str) -> CapturedPlans:
    catalog = TableCatalog(lambda *_: None, is_mariadb=False)
    settings = parse({**CONFIG, **{name.replace("__", "."): value for name, value in more.items()}})
    return CapturedPlans(TablePlanner(settings, source_schema("mysql"), catalog.table), catalog)


def decoder_of(**more: str) -> BinlogDecoder:
    return BinlogDecoder(plans_of(**more), TEMPLATE, CommitNumbers())


def changes_of(**more: str) -> list[Change]:
    plans = plans_of(**more)
    decoder = BinlogDecoder(plans, TEMPLATE, CommitNumbers())
    for event in made.through(EventReader(Checksum.CRC32, plans.complete), made.recorded(made.RECORDED_MYSQL)):
        decoder.feed(event)
    return [change for change in decoder.take() if isinstance(change, Change)]


def test_a_part_of_a_json_value_is_refused_by_the_name_of_its_column():
    with pytest.raises(CdcError) as caught:
        changes_of()
    assert caught.value.code == e.PARTIAL_JSON
    assert {"table", "column"} <= caught.value.where.keys()


def test_the_log_of_a_genuine_server_becomes_changes_of_valid_records():
    events = made.through(EventReader(Checksum.CRC32), made.recorded(made.RECORDED_MYSQL))
    tables = [event.body for event in events if isinstance(event.body, TableMap)]
    json = {column.name for table in tables for column in table.columns if column.type.code is TypeCode.JSON}
    changes = changes_of(column__exclude__list=",".join(rf".*\.{name}" for name in sorted(json)))
    for change in changes:
        schema = fastavro.parse_schema(avro.without_logical_types(value_schema("p", change.table)))
        fastavro.schemaless_writer(io.BytesIO(), schema, change_value(change), strict=True)
    assert [change.op for change in changes[:4]] == ["c", "c", "u", "u"]
    # The images are minimal: what they lack is marked.
    assert changes[2].before is None
    assert changes[2].unchanged == tuple(range(1, len(changes[2].table.columns)))
    assert [change.position for change in changes] == sorted({change.position for change in changes})
    first = changes[0].source
    assert (first["db"], first["thread"] > 0, first["gtid"].count(":")) == ("shop", True, 1)
    assert 1_700_000_000_000_000 < first["ts_us"] == first["commit_lsn"]
    tags = {change.source["gtid"].split(":")[1] for change in changes if change.source["gtid"].count(":") == 2}
    assert tags <= {"blue"}


def test_a_transaction_that_was_handed_on_in_part_has_to_come_first():
    plans = plans_of()
    decoder = BinlogDecoder(plans, TEMPLATE, CommitNumbers())
    decoder.resume(1, "3e11fa47-71ca-11e1-9e33-c80aa9429562:5")
    events = made.through(EventReader(Checksum.CRC32, plans.complete), made.recorded(made.RECORDED_MYSQL))
    with pytest.raises(CdcError) as caught:
        list(map(decoder.feed, events))
    assert caught.value.code == e.OTHER_HISTORY


def test_changes_are_taken_up_to_a_boundary():
    decoder = decoder_of()
    decoder.out = list("abcd")
    assert (decoder.take(3), decoder.take(), decoder.take()) == (list("abc"), ["d"], [])


# -- what no recorded log has ------------------------------------------------------------------------------------------

KEY = Column("id", ColumnType(TypeCode.LONG, is_unsigned=False), False)
TABLE = TableMap(1, 0, "shop", "t", (KEY,), (KeyPart(0),))


def event_of(body: object, timestamp: int = 1_000) -> Event:
    return Event(EventHeader(timestamp, 0, 5, 0, 0, 0), body, EventPlace("log.1", 120))  # type: ignore[arg-type]


def statement(text: str) -> Event:
    return event_of(Query(7, 0, "shop", text.encode(), None))


def insert(*ids: int) -> Event:
    return event_of(RowsEvent(Operation.INSERT, TABLE, tuple(BinlogRow(None, (i,)) for i in ids), True))


def fed(decoder: BinlogDecoder, *events: Event) -> list[Change]:
    for event in events:
        decoder.feed(event)
    return [change for change in decoder.take() if isinstance(change, Change)]


def test_a_server_without_gtids_has_transactions_between_begin_and_commit():
    decoder = decoder_of()
    changes = fed(decoder, statement("BEGIN"), insert(1), insert(2), statement("COMMIT"), statement("BEGIN"), insert(3))
    assert [change.after for change in changes] == [(1,), (2,), (3,)]
    assert [change.position.commit for change in changes] == [10**9, 10**9, 10**9 + 1]
    assert (changes[0].source["gtid"], changes[0].source["thread"]) == (None, 7)
    assert decoder.transaction is not None


def test_a_rollback_of_what_was_handed_on_is_an_error():
    decoder = decoder_of()
    assert fed(decoder, statement("BEGIN"), insert(1), statement("SAVEPOINT `a`"), insert(2)) != []
    with pytest.raises(CdcError) as caught:
        decoder.feed(statement("ROLLBACK TO `a`"))
    assert caught.value.code == e.ROLLED_BACK
    with pytest.raises(CdcError):
        decoder.feed(statement("ROLLBACK"))


def test_a_savepoint_behind_what_was_handed_on_can_be_gone_back_to():
    decoder = decoder_of()
    fed(decoder, statement("BEGIN"), insert(1))
    changes = fed(
        decoder, insert(2), statement("SAVEPOINT a"), insert(3), statement("ROLLBACK TO SAVEPOINT a"), insert(4)
    )
    assert [change.after for change in changes] == [(2,), (4,)]


@pytest.mark.parametrize("back", ["ROLLBACK TO `A`", "rollback work to savepoint a", "Rollback To A"])
def test_a_savepoint_is_known_in_upper_and_lower_case(back: str):
    decoder = decoder_of()
    begun = (statement("BEGIN"), insert(1), statement("SAVEPOINT `a`"), insert(2))
    changes = fed(decoder, *begun, statement(back), insert(3), statement("COMMIT"))
    assert [change.after for change in changes] == [(1,), (3,)]


def test_a_savepoint_that_is_not_in_the_log_is_an_error():
    with pytest.raises(CdcError) as caught:
        fed(decoder_of(), statement("BEGIN"), insert(1), statement("ROLLBACK TO `b`"))
    assert caught.value.code == e.MALFORMED_EVENT


@pytest.mark.parametrize("back", ["ROLLBACK", "ROLLBACK TO a"])
def test_a_rollback_of_what_an_earlier_run_handed_on_is_an_error(back: str):
    decoder = decoder_of()
    decoder.resume(2)
    with pytest.raises(CdcError) as caught:
        fed(decoder, statement("BEGIN"), insert(1), statement("SAVEPOINT a"), insert(2), insert(3), statement(back))
    assert caught.value.code == e.ROLLED_BACK
    decoder = decoder_of()
    decoder.resume(2)
    events = (statement("BEGIN"), insert(1), insert(2), statement("SAVEPOINT a"), insert(3), statement("ROLLBACK TO a"))
    assert fed(decoder, *events, insert(4))[0].after == (4,)


def test_events_that_are_rolled_back_are_not_counted():
    options = DecoderOptions(transactions=TransactionMetadata("p.transaction", source_schema("mysql")))
    decoder = BinlogDecoder(plans_of(), TEMPLATE, CommitNumbers(), options)
    back = statement("ROLLBACK TO a")
    events = (statement("BEGIN"), statement("SAVEPOINT a"), insert(1), back, insert(2), statement("SAVEPOINT a"))
    begin, change, end = fed(decoder, *events, insert(3), back, statement("COMMIT"))
    assert (begin.after[0], end.after[0], end.after[2]) == ("BEGIN", "END", 1)
    assert change.transaction is not None
    assert (change.after, change.transaction["total_order"]) == ((2,), 1)
    assert fed(decoder, statement("BEGIN"), insert(4), statement("ROLLBACK")) == []


class Rolled:
    """An observer that knows whether it was told that events do not count."""

    told = False

    def began(self, transaction: TransactionId, /) -> None:
        del transaction

    def event(self, plan: PlansTable, event: RowEvent) -> bool:
        del plan, event
        return True

    def undone(self) -> None:
        self.told = True

    def reshaped(self, plan: PlansTable) -> None:
        del plan


def test_who_watches_is_told_of_a_rollback():
    decoder = decoder_of()
    decoder.observer = watching = Rolled()
    fed(decoder, statement("BEGIN"), insert(1), statement("COMMIT"))
    assert not watching.told
    fed(decoder, statement("BEGIN"), insert(1), statement("ROLLBACK"))
    assert watching.told


XA = "X'61',X'',1"


def test_a_transaction_of_xa_in_one_phase_is_one_like_others():
    one_phase = event_of(XaPrepare(True, XaId(1, b"a", b"")))
    decoder = decoder_of()
    changes = fed(decoder, statement(f"XA START {XA}"), insert(1), statement(f"XA END {XA}"), one_phase)
    assert [change.after for change in changes] == [(1,)]
    assert decoder.transaction is None
    assert fed(decoder, statement(f"XA ROLLBACK {XA}")) == []
    assert decoder.transaction is None


@pytest.mark.parametrize(
    "last", [event_of(XaPrepare(False, XaId(1, b"a", b""))), statement(f"XA COMMIT {XA}")], ids=["prepare", "commit"]
)
def test_a_transaction_of_xa_in_two_phases_is_refused(last: Event):
    decoder = decoder_of()
    fed(decoder, statement(f"XA START {XA}"), insert(1), statement(f"XA END {XA}"))
    with pytest.raises(CdcError) as caught:
        decoder.feed(last)
    assert caught.value.code == e.XA_PREPARED


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (insert(1), e.MALFORMED_EVENT),
        (event_of(Incident(1)), e.LOG_INCIDENT),
        (statement("delete from t"), e.STATEMENT_LOGGED),
        (statement("with n as (select 1) delete from t"), e.STATEMENT_LOGGED),
        (statement("set statement max_statement_time = 9 for update t set a = 1"), e.STATEMENT_LOGGED),
    ],
)
def test_what_would_lose_rows_is_refused(event: Event, code: str):
    with pytest.raises(CdcError) as caught:
        decoder_of().feed(event)
    assert caught.value.code == code
    assert caught.value.where["file"] == "log.1"


def test_a_statement_on_a_providers_own_tables_is_passed_over():
    assert fed(decoder_of(), statement("INSERT INTO mysql.rds_heartbeat2(id, value) values (1, 2)")) == []


def test_an_error_of_a_value_does_not_quote_it():
    point = Column("g", ColumnType(TypeCode.GEOMETRY, 4), True, geometry=1)
    table = TABLE._replace(columns=(KEY, point))
    rows = RowsEvent(Operation.INSERT, table, (BinlogRow(None, (1, Geometry(0, b"hunter2"))),), True)
    with pytest.raises(CdcError) as caught:
        fed(decoder_of(), statement("BEGIN"), event_of(rows))
    assert (caught.value.code, caught.value.where["table"]) == (e.VALUE, "shop.t")
    assert "hunter2" not in str(caught.value)

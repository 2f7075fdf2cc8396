"""Records beside those of tables: the ends of transactions with every event's place between them, and heartbeats."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace

import psycopg
import pytest
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.capture.stream.heartbeat import Heartbeat, heartbeat_table
from cdcworker.connectors.capture.stream.transaction_metadata import TransactionMetadata
from cdcworker.connectors.postgres.config.settings import parse
from cdcworker.connectors.postgres.decode import native_path
from cdcworker.connectors.postgres.position import StoredPosition
from cdcworker.connectors.postgres.source.heartbeat_action import make_heartbeat, run_action
from cdcworker.connectors.postgres.source.task import PostgresTask
from cdcworker.connectors.postgres.source_block import SOURCE_SCHEMA
from cdcworker.schemas.avro import unframe
from cdcworker.schemas.change import Change, Position
from cdcworker.schemas.decode import RecordDecoder
from cdcworker.schemas.envelope import change_value
from cdcworker.schemas.format_encoder import make_encoder
from cdcworker.schemas.log import SchemaLog, register_in_memory
from cdcworker.schemas.record_format import ConnectJsonFormat, RecordFormat

from tests.conftest import unless_built

from .. import messages as m
from ..test_rules import CONFIG
from .test_decoder import COLUMNS, decoder

MESSAGES = [
    m.begin(1000, us=m.PG_EPOCH_US + 5_000_000), m.relation(1, COLUMNS), m.relation(2, COLUMNS, name="u"),
    m.relation(3, COLUMNS, name="other"), m.insert(1, b"1", None, None), m.insert(3, b"1", None, None),
    m.message("p", b"x", 1), m.insert(2, b"1", None, None), m.update(1, [b"2", b"", None], [b"1", None, None]),
    m.truncate(1, 2), m.delete(1, [b"2", None, None]), m.commit(1000),
    m.begin(2000, xid=8), m.insert(3, b"1", None, None), m.commit(2000),
    m.begin(3000, xid=9), m.insert(1, b"6", None, None), m.commit(3000),
]  # fmt: skip


def numbered(part: tuple[int, int] | None = None, counts: dict[str, int] | None = None):
    changes = decoder()
    changes.orders = TransactionMetadata("shop.transaction", SOURCE_SCHEMA)
    changes.resume(0, part, counts)
    return changes


def ends(changes) -> list[tuple]:
    return [change.after for change in changes if change.table.plain is not None]


def test_each_event_has_its_place_between_the_ends_of_its_transaction():
    changes = numbered()
    for data in MESSAGES:
        changes.feed(data)
    ms = (m.PG_EPOCH_US + 5_000_000) // 1000
    counts = {"public.t": 5, "message": 1, "public.u": 2}
    begin, end, *more = ends(changes.out)
    assert begin == ("BEGIN", "7:1000", None, None, ms)
    assert end == ("END", "7:1000", 8, [{"data_collection": n, "event_count": c} for n, c in counts.items()], ms)
    # A transaction without events has no ends.
    assert [row[:3] for row in more] == [("BEGIN", "9:3000", None), ("END", "9:3000", 1)]
    first, *events, last = changes.out[:10]
    assert (first.after, last.after) == (begin, end)
    assert [change.transaction["total_order"] for change in events] == list(range(1, 9))
    places = [(".".join(c.table.path), c.transaction["data_collection_order"]) for c in events]
    assert places == [
        ("public.t", 1), ("message", 1), ("public.u", 1), ("public.t", 2), ("public.t", 3), ("public.t", 4),
        ("public.u", 2), ("public.t", 5),
    ]  # fmt: skip
    assert {change.transaction["id"] for change in events} == {"7:1000"}


def test_a_message_outside_of_transactions_has_no_place():
    changes = numbered()
    changes.feed(m.message("p", b"x", 500, transactional=False))
    assert [change.transaction for change in changes.out] == [None]


@pytest.mark.parametrize("cut", range(4, 12))
def test_a_transaction_that_is_resumed_inside_goes_on_counting(cut):
    whole, first = numbered(), numbered()
    for data in MESSAGES:
        whole.feed(data)
    for data in MESSAGES[:cut]:
        first.feed(data)
    part = first.part
    rest = numbered(part if part and part[1] else None, dict(first.orders.counts))
    for data in MESSAGES:
        rest.feed(data)
    told = [(c.op, c.position, c.after, c.transaction) for c in (*first.out, *rest.out)]
    assert told == [(c.op, c.position, c.after, c.transaction) for c in whole.out]


def test_the_counts_are_a_part_of_a_position_inside_a_transaction_only():
    position = StoredPosition("1", 1, "s", 0, 5, 6, part=(9, 2), orders={"public.t": 2})
    assert StoredPosition.from_json(json.loads(json.dumps(position.to_json()))) == position
    position.part = None
    assert "orders" not in position.to_json()


@unless_built(native_path.native())
def test_rows_go_to_the_decoder_in_python_where_they_are_numbered():
    changes = numbered()
    module = native_path.native()
    assert module is not None
    shaper = SimpleNamespace(clock_ns=lambda: 0, version=0)
    fast = native_path.NativePath(changes, shaper, module)
    for data in MESSAGES:
        fast.feed(data)
    assert all(isinstance(change, Change) for change in changes.out)
    assert len(ends(changes.out)) == 4


def encoded(change: Change, form: RecordFormat) -> tuple[SchemaLog, list]:
    log = SchemaLog()
    return log, make_encoder(form, "shop", register_in_memory(log)).encode([change])


@pytest.mark.parametrize("form", [RecordFormat(), RecordFormat(key=ConnectJsonFormat(schemas=False))])
def test_both_kinds_are_written_without_an_envelope_under_debeziums_names(form):
    changes = numbered()
    for data in MESSAGES[:12]:
        changes.feed(data)
    beat = Change(
        "m", heartbeat_table("__debezium-heartbeat.shop", SOURCE_SCHEMA), Position(1, 0, 0), {}, None, ("shop", 17)
    )
    for change, topic, name, key in (
        (changes.out[-1], "shop.transaction", "TransactionMetadataValue", {"id": "7:1000"}),
        (changes.out[0], "shop.transaction", "TransactionMetadataValue", {"id": "7:1000"}),
        (beat, "__debezium-heartbeat.shop", "Heartbeat", {"serverName": "shop"}),
    ):
        log, (record,) = encoded(change, form)
        assert record.topic == topic
        assert record.hash is not None
        decode = RecordDecoder(log).decode
        assert decode(record.value) == change_value(change)
        schema = log.by_id(unframe(record.value)[0]).schema
        assert schema["connect.name"] == f"io.debezium.connector.common.{name}"
        assert (json.loads(record.key) if isinstance(form.key, ConnectJsonFormat) else decode(record.key)) == key
    assert change_value(beat) == {"ts_ms": 17}


def test_they_have_a_form_in_json_too():
    changes = numbered()
    for data in MESSAGES[:12]:
        changes.feed(data)
    _, (record,) = encoded(changes.out[-1], RecordFormat(ConnectJsonFormat(), ConnectJsonFormat()))
    value = json.loads(record.value)
    assert value["payload"] == change_value(changes.out[-1])
    assert value["schema"]["name"] == "io.debezium.connector.common.TransactionMetadataValue"
    assert json.loads(record.key)["schema"]["name"] == "io.debezium.connector.common.TransactionMetadataKey"


# -- heartbeats -------------------------------------------------------------------------------------------------------


def heart(**config: str) -> Heartbeat:
    return make_heartbeat(parse({**CONFIG, **config}))


class Catalog:
    """A connection on which the statement of a heartbeat is run."""

    def __init__(self, failure: Exception | None = None, *, closed: bool = False) -> None:
        self.ran: list[str] = []
        self.failure, self.closed = failure, closed

    def execute(self, statement, arguments=None):
        text = statement.decode() if isinstance(statement, bytes) else statement
        if self.failure and "set_config" not in text:
            raise self.failure
        self.ran.append(text)


def beat_of(beating: Heartbeat, catalog: Catalog, now: float) -> list[Change]:
    return beating.beat(now, Position(6, 0, 0), partial(run_action, catalog))


def test_heartbeats_come_once_an_interval_and_only_where_one_is_set():
    assert not heart().due(1e9)
    beating, catalog = heart(**{"heartbeat.interval.ms": "5000"}), Catalog()
    (beat,) = beat_of(beating, catalog, 100.0)
    assert beat.after[0] == CONFIG["topic.prefix"]
    assert [beating.due(at) for at in (104.9, 105.0)] == [False, True]
    assert beat_of(beating, catalog, 104.9) == []
    assert catalog.ran == []


def test_the_statement_of_a_heartbeat_is_run_within_a_time_limit_and_its_failure_is_told():
    config = {"heartbeat.interval.ms": "5000", "heartbeat.action.query": "update beat set at = '100%'"}
    beating, catalog = heart(**config), Catalog()
    beat_of(beating, catalog, 0.0)
    assert [config["heartbeat.action.query"] in text for text in catalog.ran] == [False, True, False]
    assert beating.report() == {"heartbeat_action_failures": 0, "heartbeat_action_error": ""}
    denied = Catalog(psycopg.errors.InsufficientPrivilege("no"))
    assert len(beat_of(beating, denied, 10.0)) == 1
    assert beating.report() == {"heartbeat_action_failures": 1, "heartbeat_action_error": "postgres.permission_denied"}
    with pytest.raises(psycopg.OperationalError):
        beat_of(beating, Catalog(psycopg.OperationalError("gone"), closed=True), 20.0)


def test_the_topic_has_debeziums_name_in_each_of_its_ways():
    for config, topic in (
        ({}, "__debezium-heartbeat.shop"),
        ({"topic.heartbeat.prefix": "beats"}, "beats.shop"),
        ({"heartbeat.topics.prefix": "old"}, "old.shop"),
        ({"topic.heartbeat.name": "pulse"}, "pulse"),
    ):
        beating = heart(**{"topic.prefix": "shop", "heartbeat.interval.ms": "1", **config})
        (beat,) = beat_of(beating, Catalog(), 0.0)
        assert beat.table.plain.topic == topic


def test_without_heartbeats_an_idle_task_stores_its_position_all_the_same():
    assert parse(CONFIG).heartbeat_s == 10.0
    assert parse({**CONFIG, "heartbeat.interval.ms": "300"}).heartbeat_s == 0.3
    PostgresTask(parse(CONFIG), TaskContext("c", 0, 1, "i", ""))

"""Rows whose key changes while a large value of theirs is not sent: they are read again and arrive whole, whatever is
killed in between, also where a reader of the new key never had the old one's row."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing

import psycopg
import pyarrow as pa
import pytest
from cdcworker.connectors.arrow.assembler import Assembler
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.connectors.capture.snapshot import chunk_scheduler as loading
from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter
from cdcworker.schemas.decode import RecordDecoder
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests import change_streams
from tests.contract.polled_task import materialise
from tests.contract.source_crashes import DEADLINE_S, EXACT
from tests.unit.connectors.native_records import Registry

from ..postgres_reader import SLOWLY
from .test_crash_matrix import Stage

pytestmark = pytest.mark.postgres

BIG = 5000


def made(db, rows: int, width: int = BIG) -> None:
    db.execute("create table t(id int primary key, big text, n int)")
    db.execute("alter table t alter column big set storage external")
    db.execute("insert into t select g, repeat('x', %s) || g, 0 from generate_series(1, %s) g", (width, rows))


def held(db) -> dict:
    rows = db.execute("select id, big, n from t").fetchall()
    return {(row[0],): dict(zip(("id", "big", "n"), row, strict=True)) for row in rows}


def is_moving(one) -> bool:
    return any(load["origin"] == "moved" for load in one.position["snapshot"].get("loads", ()))


@pytest.mark.sampled(2, "moves")
@pytest.mark.parametrize("natively", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_row_that_moved_without_its_large_value_is_read_again_by_its_new_key(db, reader, natively):
    made(db, 50)
    one = reader()
    one.registry = Registry() if natively else None
    one.start()
    one.until(one.loaded)
    jobs = len(one.position["snapshot"]["done"])
    one.log.clear()
    db.execute("update t set id = id + 1000, n = 1 where id <= 5; update t set n = 2 where id = 7")
    one.catch_up(db)
    ops = [(change.op, (change.after or change.before)[0]) for change in one.log]
    assert ops[:10] == [(op, n + 1000 * (op == "c")) for n in range(1, 6) for op in ("d", "c")]
    assert ops[10] == ("u", 7)
    assert sorted(ops[11:]) == [("r", n) for n in range(1001, 1006)]
    assert all(change.unchanged == (1,) for change in one.events("c", "u"))
    assert all(len(change.after[1]) > BIG for change in one.events("r"))
    # Nobody has asked for a snapshot, and none is shown.
    assert len(one.position["snapshot"]["done"]) == jobs
    assert not one.task._session.decoder.observer
    one.log.clear()
    db.execute("update t set n = 3 where id = 1001; alter table t replica identity full")
    db.execute("update t set id = 2001 where id = 1001")
    one.catch_up(db)
    assert [change.op for change in one.log] == ["u", "d", "c"]
    assert len(one.log[-1].after[1]) > BIG


@pytest.mark.sampled(2, "moves")
def test_what_is_to_be_read_again_outlives_a_kill_and_what_is_gone_by_then_does_not_come(postgres, db, reader):
    made(db, 50)
    one = reader(**{"snapshot.lock.timeout.ms": "20"}).start()
    one.until(one.loaded)
    one.log.clear()
    with closing(psycopg.connect(postgres.dsn(db.info.dbname))) as lock:
        moved_behind(db, lock, "update t set id = id + 1000 where id <= 3")
        one.until(lambda: one.events("c") and is_moving(one))
        one.kill()
        lock.execute("delete from t where id = 1002; update t set n = 9 where id = 1003")
        lock.commit()
    assert not one.events("r")
    one.start()
    one.catch_up(db)
    assert sorted(change.after[0] for change in one.events("r")) == [1001, 1003]
    for change in one.events("r"):
        assert (change.after[1], change.after[2]) == (
            f"{'x' * BIG}{change.after[0] - 1000}",
            9 * (change.after[0] == 1003),
        )
    assert [change.before[0] for change in one.events("d")][-1] == 1002


def moved_behind(db, lock, statement: str) -> None:
    """The statement's rows are committed and cannot be read until `lock` ends its transaction."""
    with db.transaction():
        db.execute(statement)
        lock.pgconn.send_query(b"begin; lock table t in access exclusive mode")
        deadline = time.monotonic() + 30
        while not db.execute("select 1 from pg_locks where not granted and relation = 't'::regclass").fetchone():
            assert time.monotonic() < deadline
    while (result := lock.pgconn.get_result()) is not None:
        assert not result.error_message


@pytest.mark.sampled(2, "moves")
@pytest.mark.parametrize("rows", [300, 2000])
def test_many_that_moved_are_read_in_chunks_or_with_their_table(db, reader, monkeypatch, rows):
    """By keys as long as these can be kept, in chunks that are bounded in bytes; else all rows once more."""
    monkeypatch.setattr(loading, "AGAIN_ROWS_MAX", 1000)
    made(db, 2100)
    config = {"snapshot.chunk.max.bytes": "65536", "snapshot.inflight.max.bytes": "262144"}
    one = reader(**config).start()
    one.until(one.loaded)
    one.log.clear()
    most = 0
    with db.transaction():
        db.execute("update t set id = id + 10000 where id <= %s", (rows,))
        # The same ones over and over take no more room.
        for _ in range(4):
            db.execute("update t set id = id + 1 where id = 12100")
    while not (one.events("c") and one.loaded()):
        most = max(most, sum(change.op == "r" for change in one.poll().changes))
    one.catch_up(db)
    read = [change.after[0] for change in one.events("r")]
    assert len(set(read)) == len(read) == (rows if rows <= 1000 else 2100)
    assert 0 < most <= 100
    assert all(len(change.after[1]) > BIG for change in one.events("r"))
    final = {change.after[0]: change.after[1] for change in one.events("r")}
    assert final.items() <= {key[0]: row["big"] for key, row in held(db).items()}.items()


@pytest.mark.sampled(2, "moves")
@pytest.mark.parametrize("transport", ["socket", pytest.param("psycopg", marks=pytest.mark.long)])
def test_equal_keys_in_other_words_are_read_once(db, reader, transport):
    db.execute("create table t(id numeric primary key, big text, n int)")
    db.execute("alter table t alter column big set storage external")
    db.execute("insert into t select g, repeat('x', 300000), 0 from generate_series(1, 3) g")
    small = {"snapshot.chunk.max.bytes": "65536", "snapshot.inflight.max.bytes": "262144"}
    one = reader(**small, **{"database.transport": transport}).start()
    one.until(one.loaded)
    one.log.clear()
    with db.transaction():
        db.execute("update t set id = id + 4.0, n = 1")
        db.execute("update t set id = id + 0.00, n = 2")
    one.catch_up(db)
    one.until(lambda: one.loaded() and not is_moving(one))
    read = one.events("r")
    found = [(int.from_bytes(change.after[0]["value"], "big"), change.after[0]["scale"]) for change in read]
    assert {value // 10**scale for value, scale in found} == {5, 6, 7}
    assert len(read) <= 6
    assert all(change.after[1:] == ("x" * 300000, 2) for change in read)


@pytest.mark.sampled(2, "moves")
def test_without_a_snapshot_no_row_is_read(db, reader):
    made(db, 3)
    one = reader(snapshot_mode="no_data").start()
    db.execute("update t set id = 10 where id = 1")
    one.catch_up(db)
    assert [change.op for change in one.log] == ["d", "c"]


@pytest.mark.sampled(2, "moves")
def test_a_key_that_changes_its_type_meanwhile_has_the_table_read(postgres, db, reader):
    made(db, 20)
    one = reader(**{"snapshot.lock.timeout.ms": "20"}).start()
    one.until(one.loaded)
    one.log.clear()
    with closing(psycopg.connect(postgres.dsn(db.info.dbname))) as lock:
        moved_behind(db, lock, "update t set id = 100 where id = 1")
        one.until(lambda: one.events("c") and is_moving(one))
        lock.execute("alter table t drop constraint t_pkey, alter column n set not null, add primary key (id, n)")
        lock.commit()
    one.catch_up(db)
    assert len(one.events("r")) == 20
    rows = {(row["id"],): row for row in materialise(one.log)["public", "t"].values() if "id" in row}
    assert {key: row["big"] for key, row in rows.items()} == {key: row["big"] for key, row in held(db).items()}


# -- through Kafka into a warehouse ------------------------------------------------------------------------------------

PARTITIONS = 4


class Moving(Stage):
    """A loaded table, its topic in several partitions."""

    def __init__(self, *parts) -> None:
        super().__init__(*parts)
        self.more = {
            "snapshot.mode": "initial",
            "topic.creation.default.partitions": str(PARTITIONS),
            "snapshot.lock.timeout.ms": "20",
        }
        self.db.execute("alter table t alter column v set storage external")
        self.db.execute("insert into t select g, repeat('x', 5000) || g from generate_series(1, 40) g")

    def moves(self) -> bool:
        position = self.cluster.position()
        return any(load["origin"] == "moved" for load in (position or {}).get("snapshot", {}).get("loads", ()))

    def whole(self) -> bool:
        position = self.cluster.position()
        return position is not None and not position["snapshot"].get("loads")

    def life(self) -> None:
        child = self.child()
        child.wait(lambda: self.whole() and child.reached(self.end()), "all rows")
        assert child.stop() == 0

    def raw(self) -> list[dict]:
        """The topic's records as a sink gets them, partition by partition."""
        topic = f"{self.cluster.prefix}.public.t"
        settings = {"group.id": "sink", "isolation.level": "read_committed", "enable.partition.eof": True}
        found: list[dict] = []
        with closing(Consumer({**self.cluster.kafka, **settings, "enable.auto.commit": False})) as consumer:
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
            ended, deadline = 0, time.monotonic() + DEADLINE_S
            while ended < PARTITIONS:
                assert time.monotonic() < deadline
                message = consumer.poll(1.0)
                if message is not None and message.error():
                    ended += 1
                elif message is not None:
                    found.append(as_read(message))
        return sorted(found, key=lambda record: (record["partition"], record["offset"]))


def as_read(message) -> dict:
    headers = [{"key": name, "value": value} for name, value in message.headers() or ()]
    return {
        **{name: getattr(message, name)() for name in ("topic", "partition", "offset", "key", "value")},
        "headers": headers or None,
    }


@pytest.fixture
def stage(kafka, postgres, tmp_path, rng):
    made = Moving(kafka, postgres, rng, tmp_path, EXACT)
    yield made
    made.close()


@pytest.mark.kafka
def test_killed_between_the_move_and_the_read_the_row_arrives_whole_in_every_order_of_partitions(stage, postgres):
    stage.life()
    child = stage.child()
    child.wait(lambda: child.reached(stage.end()), "the stream")
    with closing(psycopg.connect(postgres.dsn(stage.database))) as lock:
        moved_behind(stage.db, lock, "update t set id = id + 1000 where id <= 20")
        child.wait(stage.moves, "the move's position")
        child.process.kill()
        child.wait(child.ended, "its death")
        lock.execute("delete from t where id = 1002")
        lock.commit()
    stage.life()
    records, wanted = stage.raw(), dict(stage.db.execute("select id, v from t").fetchall())
    assert len(wanted) == 39
    decoder = RecordDecoder(stage.cluster.schemas())
    streamed = [record for record in records if not is_read_again(record, decoder)]
    assert len(records) - len(streamed) == 19
    if stage.db.info.server_version < 150000:
        pytest.skip("the records are as they should be; a warehouse needs PostgreSQL 15")
    wrong = 0
    for order in (range(PARTITIONS), range(PARTITIONS - 1, -1, -1)):
        assert applied(stage, postgres, records, order) == wanted
        wrong += applied(stage, postgres, streamed, order) != wanted
    # In one of the orders new keys came before their old ones.
    assert wrong > 0


def is_read_again(record: dict, decoder: RecordDecoder) -> bool:
    found = decoder.decode(record["value"]) if record["value"] is not None else {"op": None}
    return found["op"] == "r" and found["after"]["id"] > 1000


def applied(stage: Moving, postgres, records: list[dict], order: Iterable[int]) -> dict[int, str]:
    """One partition after the other, a batch each, into a new warehouse: the rows that it has then."""
    database = postgres.create_database()
    schemas = change_streams.Schemas()
    schemas.log = stage.cluster.schemas()
    assembler = Assembler(EnvelopeSchemas(schemas, wait_s_max=0))
    writer = PostgresWriter(postgres.dsn(database), "sink")
    try:
        writer.fence((1, 0))
        for number, partition in enumerate(order):
            part = [record for record in records if record["partition"] == partition]
            raw: pa.Table = change_streams.arrow(part)
            writer.apply(assembler.build(raw, writer.ledger(), number))
        with psycopg.connect(postgres.dsn(database)) as db:
            return dict(db.execute("select id, v from public.t").fetchall())
    finally:
        writer.close()
        postgres.drop_database(database)


COMPACTED = {"topic.creation.default.cleanup.policy": "compact"}


def newest(one) -> dict[int, object]:
    """What compaction leaves: the last change of each key."""
    return {(change.after or change.before)[0]: change for change in one.log}


@pytest.mark.sampled(2, "moves")
@pytest.mark.parametrize("natively", [pytest.param(False, marks=pytest.mark.long), True])
def test_what_compaction_leaves_of_a_row_is_whole(db, reader, natively):
    """The last record of a key is all that a late reader finds."""
    made(db, 50)
    one = reader(**COMPACTED)
    one.registry = Registry() if natively else None
    one.start()
    one.until(one.loaded)
    jobs = len(one.position["snapshot"]["done"])
    db.execute("update t set n = 1 where id <= 5; update t set big = 'short' where id = 6")
    db.execute("update t set n = 2 where id = 3; delete from t where id = 4")
    one.catch_up(db)
    assert all(change.unchanged == (1,) for change in one.events("u") if change.after[0] <= 5)
    left = newest(one)
    assert left[4].op == "d"
    rows = {key: change.after for key, change in left.items() if change.op != "d"}
    assert rows == {row[0]: tuple(row) for row in db.execute("select id, big, n from t").fetchall()}
    assert not any(change.unchanged for change in left.values())
    assert len(one.position["snapshot"]["done"]) == jobs
    assert not one.task._session.decoder.observer


@pytest.mark.sampled(2, "moves")
def test_what_compaction_leaves_of_a_row_is_whole_without_a_snapshot_too(db, reader):
    made(db, 5)
    one = reader(snapshot_mode="no_data", **COMPACTED).start()
    db.execute("update t set n = 1 where id <= 2")
    one.catch_up(db)
    left = newest(one)
    assert {key: change.after for key, change in left.items()} == {
        row[0]: tuple(row) for row in db.execute("select id, big, n from t where id <= 2").fetchall()
    }
    assert not any(change.unchanged for change in left.values())


@pytest.mark.sampled(2, "moves")
def test_what_compaction_leaves_is_whole_where_rows_change_while_they_are_loaded(db, reader):
    made(db, 200)
    one = reader(**COMPACTED, **SLOWLY).start()
    one.until(lambda: len(one.events("r")) >= 5)
    assert not one.loaded()
    db.execute("update t set n = 1 where id <= 3 or id = 200")
    one.until(one.loaded)
    one.catch_up(db)
    rows = {key: change.after for key, change in newest(one).items()}
    assert rows == {row[0]: tuple(row) for row in db.execute("select id, big, n from t").fetchall()}

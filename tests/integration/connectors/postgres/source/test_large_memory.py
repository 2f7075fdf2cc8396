"""One transaction of ten million rows through a real task process into Kafka: flat memory, nothing before its commit,
nothing that it has taken back, no file on the server, and no more Kafka transactions than its size asks for."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import psycopg
import pytest
from cdcworker.schemas.decode import RecordDecoder
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from . import test_crash_matrix as crash_matrix

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.long]

ROWS = int(os.environ.get("CDC_LARGE_ROWS", "10000000"))
RSS_MIB_MAX = 512
SPLIT_BYTES = 1 << 30
"""Below it a source transaction is one Kafka transaction."""
DEADLINE_S = 3600.0


def wait(child, condition, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert not child.ended(), child.log.decode()[-3000:]
        assert time.monotonic() < deadline, f"not in time: {what}\n{child.log.decode()[-3000:]}"
        child.lease()
        time.sleep(0.1)


def peak_mib(child) -> float:
    """0 of a process that has ended: whoever waits for it then shows its log."""
    peak = Path(f"/proc/{child.process.pid}/status").read_text().partition("VmHWM:")[2].split()
    return int(peak[0]) / 1024 if peak else 0.0


def fill(writer) -> None:
    """An open transaction with every row, and more that it takes back."""
    insert = "insert into t select g, 'value ' || g from generate_series(%s::int, %s::int) g"
    writer.execute(insert, (1, ROWS // 2))
    writer.execute("savepoint taken_back")
    writer.execute(insert, (ROWS + 1, ROWS + ROWS // 10))
    writer.execute("rollback to taken_back")
    writer.execute(insert, (ROWS // 2 + 1, ROWS))


def spilled(stage) -> int:
    """Bytes that the server has written to files. What was confirmed while the transaction was open it does not send
    ahead again: after a restart it may."""
    return stage.db.execute("select sum(spill_bytes)::bigint from pg_stat_replication_slots").fetchone()[0]


def read_ids(stage) -> tuple[int, int]:
    """How many records the topic holds for readers of committed ones, and how many of a sample are out of place."""
    consumer = Consumer(
        {
            **stage.cluster.kafka,
            "group.id": "count",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(f"{stage.cluster.prefix}.public.t", 0, OFFSET_BEGINNING)])
    decoder, count, wrong = RecordDecoder(stage.cluster.schemas()), 0, 0
    while True:
        messages = consumer.consume(10_000, 10.0)
        assert messages
        for message in messages:
            if message.error():
                consumer.close()
                return count, wrong
            count += 1
            if count % 1000 == 1:
                record = decoder.decode(message.value())
                wrong += (record["after"]["id"], record["source"]["tx_index"]) != (count, count - 1)


@pytest.mark.timeout(3 * DEADLINE_S)
def test_a_transaction_of_any_size_needs_little_memory_and_survives_a_kill(kafka, postgres, tmp_path):
    stage = crash_matrix.Stage(kafka, postgres, random.Random(1), tmp_path, crash_matrix.EXACT)
    # A table that comes meanwhile is none of the source's, whose role may not change the publication.
    stage.more = {**stage.more, "table.include.list": "public.t"}
    try:
        child = stage.child()
        wait(child, lambda: "RUNNING" in child.states(), "running")
        with psycopg.connect(postgres.dsn(stage.database)) as writer:
            filling = threading.Thread(target=fill, args=(writer,))
            filling.start()
            wait(child, lambda: not filling.is_alive(), "the rows")
            stage.db.execute("create table other(id int primary key)")
            wait(child, lambda: any(path.stat().st_size for path in tmp_path.rglob("spool/*/*/*")), "the spool")
            assert not [name for message in child.messages if message["type"] == "topics" for name in message["topics"]
                        if name.endswith(".t")]  # fmt: skip
            writer.commit()
        committed = time.monotonic()
        target = crash_matrix.postgres_lsn(stage.db.execute("select pg_current_wal_lsn()::text").fetchone()[0])
        stage.db.execute("select pg_logical_emit_message(true, 'cdcworker', 'on')")
        wait(child, lambda: any(".t" in str(message.get("topics")) for message in child.messages), "the first record")
        assert spilled(stage) == 0
        peak = peak_mib(child)
        child.process.kill()
        last = stage.child()

        def done() -> bool:
            nonlocal peak
            peak = max(peak, peak_mib(last))
            return last.reached(target)

        wait(last, done, "the end")
        took = time.monotonic() - committed
        told = [message for message in last.messages if message["type"] == "metrics" and "flushes" in message][-1]
        print(
            f"{ROWS} rows, killed once: {took:.0f} s, peak {peak:.0f} MiB, the server spilled {spilled(stage)} bytes after the kill,"
            f" {told['records']} records of {told['bytes']} bytes in Kafka transactions {told['flushes']}"
        )
        assert last.stop() == 0
        assert told["flushes"].get("part", 0) <= told["bytes"] // SPLIT_BYTES
        assert read_ids(stage) == (ROWS, 0)
        assert peak <= RSS_MIB_MAX
    finally:
        stage.close()

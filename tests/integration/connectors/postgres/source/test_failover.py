"""A primary is killed under load, its standby is promoted, and a worker's connector goes on by itself: every row of the
new primary is in Kafka and none twice; where the slot is not on the standby it halts, and makes none in silence."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from cdcworker.schemas.decode import RecordDecoder
from cdcworker.worker.quickstart.roles import make_reader

from tests import plain_http
from tests.contract.source_crashes import position_of
from tests.integration import one_worker

from ..standbys import follow
from .test_topics import config_of

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.long]

GOAL_S = 10.0
"""From the promotion to the first change of the new primary in Kafka, or to the halt."""
SETUP_S = 180.0
PAUSE_S = 0.02
FAILURES = 8
"""In a row, by which the pauses between attempts are as long as they get."""
SYNCED = "select 1 from pg_replication_slots where slot_name = %s and synced and not temporary and invalidation_reason is null"


class Load(threading.Thread):
    """Transactions on one server until it is gone or this is ended; `count` of them have committed."""

    def __init__(self, dsn: str, first: int) -> None:
        super().__init__()
        self.dsn, self.first, self.count = dsn, first, 0
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with psycopg.connect(self.dsn, autocommit=True) as db:
                while not self._ended.wait(PAUSE_S):
                    number = self.first + self.count
                    with db.transaction():
                        db.execute(
                            "insert into t select g, 'new' from generate_series(%s::int, %s) g",
                            (10 * number, 10 * number + 9),
                        )
                        db.execute("update t set v = 'changed' where id = %s", (10 * number - 5,))
                        db.execute("delete from t where id = %s", (10 * number - 4,))
                    self.count += 1
        except psycopg.OperationalError:
            """The server is gone, which it was started for."""

    def end(self) -> None:
        self._ended.set()
        self.join()


class Drill:
    """A worker, and a connector that knows both servers."""

    def __init__(self, kafka, folder, primary, standby) -> None:
        self.kafka, self.folder, self.primary, self.standby = kafka, folder, primary, standby
        self.group = f"fw{uuid.uuid4().hex[:8]}"
        self.database = primary.create_database()
        self.topic = f"{self.group}.public.t"
        self.slot = f"s_{self.database}"
        self.worker: one_worker.Worker | None = None

    def begin(self, *, ready: bool) -> None:
        with psycopg.connect(self.primary.dsn(self.database), autocommit=True) as db:
            if db.info.server_version < 170000:
                pytest.skip("failover slots came with PostgreSQL 17")
            db.execute("create table t(id int primary key, v text); insert into t values (0, 'row')")
            role = make_reader(
                self.primary.dsn(self.database),
                f"r_{self.database}",
                "only here",
                [("public", "t")],
                f"p_{self.database}",
            )
            follow(self.primary, self.standby, db, waits=ready)
        self.worker = one_worker.Worker(self.folder, self.kafka.bootstrap, self.group)
        self.worker.wait_ready()
        places = {
            "database.hostname": "127.0.0.1,127.0.0.1",
            "database.port": f"{self.primary.port},{self.standby.port}",
        }
        more = {
            **places,
            "slot.failover": "true",
            "heartbeat.interval.ms": "200",
            "topic.creation.default.partitions": "1",
        }
        self.worker.put("shop", config_of(role, self.group, **more))
        self.worker.wait_state("shop", "RUNNING")

    def records(self) -> list[dict]:
        decoder = RecordDecoder(self.worker.schemas())
        return [
            decoder.decode(message.value()) for message in self.worker.read(self.topic) if message.value() is not None
        ]

    def killed(self) -> None:
        """By a signal that lets the server do nothing any more."""
        os.kill(self.primary.pid, signal.SIGKILL)
        self.worker.wait(lambda: not accepts(self.primary.dsn()), "the primary is gone")

    def promoted(self) -> float:
        with psycopg.connect(self.standby.dsn(), autocommit=True) as db:
            db.execute("select pg_promote(true, 60)")
        return time.monotonic()

    def arrived(self, number: int) -> bool:
        """Whether one of the last records is of a row with at least this number."""
        found = [message.value() for message in self.worker.read(self.topic)[-50:]]
        decoder = RecordDecoder(self.worker.schemas())
        records = [decoder.decode(value) for value in found if value is not None]
        return any(record["after"] and record["after"]["id"] >= number for record in records)

    def held(self) -> dict[int, str]:
        with psycopg.connect(self.standby.dsn(self.database)) as db:
            return dict(db.execute("select id, v from t").fetchall())


def accepts(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def folded(records: list[dict]) -> dict[int, str]:
    rows = {}
    for record in records:
        if record["op"] == "d":
            del rows[record["before"]["id"]]
        else:
            rows[record["after"]["id"]] = record["after"]["v"]
    return rows


@pytest.fixture
def drill(kafka, tmp_path, primary, standby) -> Iterator[Drill]:
    made = Drill(kafka, tmp_path, primary, standby)
    yield made
    if made.worker is not None:
        made.worker.kill()


@pytest.mark.parametrize("failures", [0, FAILURES], ids=["at once", "after a long outage"])
def test_a_connector_goes_on_by_itself_with_all_rows_when_the_standby_is_promoted(drill, failures):
    drill.begin(ready=True)
    load = Load(drill.primary.dsn(drill.database), 1)
    with closing(psycopg.connect(drill.standby.dsn(), autocommit=True)) as other:
        drill.worker.wait(
            lambda: other.execute(SYNCED, (drill.slot,)).fetchone(), "the slot is on the standby", SETUP_S
        )
    drill.worker.wait(lambda: load.count > 200 and drill.arrived(1000), "the load is in Kafka", SETUP_S)
    drill.killed()
    load.end()
    drill.worker.wait(lambda: f"attempt={failures}" in drill.worker.log.read_text() or not failures, "the outage")
    promoted = drill.promoted()
    load = Load(drill.standby.dsn(drill.database), 1_000_000)
    drill.worker.wait(lambda: drill.arrived(10_000_000), "changes of the new primary")
    took = time.monotonic() - promoted
    print(f"\nthe first change {took:.1f} s after the promotion, {failures} failures before it")
    drill.worker.wait(lambda: load.count > 200, "more load")
    load.end()
    drill.worker.wait(lambda: folded(drill.records()) == drill.held(), "all rows")
    records = drill.records()
    print(
        f"{len(records)} records, {len(drill.held())} rows, the process started {len(drill.worker.starts('shop-0'))} times"
    )
    positions = [position_of(record) for record in records if record["op"] != "r"]
    assert positions == sorted(set(positions))
    assert drill.worker.task("shop")["state"] == "RUNNING"
    assert took <= GOAL_S


def test_a_connector_halts_where_its_slot_is_not_on_the_promoted_standby(drill):
    # It would be there in a moment, and this is about the moment before.
    del drill.standby.settings["sync_replication_slots"]
    drill.begin(ready=False)
    load = Load(drill.primary.dsn(drill.database), 1)
    drill.worker.wait(lambda: load.count > 200 and drill.arrived(1000), "the load is in Kafka", SETUP_S)
    drill.killed()
    load.end()
    promoted = drill.promoted()
    load = Load(drill.standby.dsn(drill.database), 1_000_000)
    task = drill.worker.wait_state("shop", "FAILED")
    took = time.monotonic() - promoted
    print(f"\nhalted {took:.1f} s after the promotion: {task['error']['code']}")
    assert task["error"]["code"] == "postgres.slot_missing"
    drill.worker.wait(lambda: load.count > 200, "load on the new primary")
    asked = f"{drill.worker.url}/connectors/shop/restart?includeTasks=true"
    assert plain_http.post(asked, timeout=30).is_success
    drill.worker.wait(lambda: len(drill.worker.starts("shop-0")) > 1, "another start")
    assert drill.worker.wait_state("shop", "FAILED")["error"]["code"] == "postgres.slot_missing"
    load.end()
    assert not drill.arrived(10_000_000)
    with psycopg.connect(drill.standby.dsn(drill.database)) as db:
        assert db.execute("select slot_name from pg_replication_slots where slot_type = 'logical'").fetchall() == []
    assert took <= GOAL_S

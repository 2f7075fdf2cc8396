"""`cdcworker verify --repair` of a PostgreSQL warehouse that somebody has spoilt, over a real broker, while the source is written to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from cdcworker.schemas.decode import RecordDecoder
from psycopg.conninfo import conninfo_to_dict

from tests import plain_http
from tests.integration import one_worker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1200)]
COMMAND = str(Path(sys.executable).with_name("cdcworker"))
PARTS = {"hostname": "host", "port": "port", "user": "user", "password": "password", "dbname": "dbname"}
ROWS = 3_000
STARTED_S = 300.0
TABLES = {"people": "id, name, note", "lines": "doc, line, v"}


class Writer(threading.Thread):
    """Changes, inserts and deletes rows of the source, those that are repaired among them."""

    def __init__(self, dsn):
        super().__init__(daemon=True)
        self.db, self.ending, self.count = psycopg.connect(dsn, autocommit=True), threading.Event(), 0

    def run(self):
        while not self.ending.wait(0.02):
            self.count += 1
            at = self.count * 7 % (ROWS + 200)
            self.db.execute("insert into people values (%s, %s) on conflict (id) do update set name = excluded.name",
                            (at, f"written {self.count}"))  # fmt: skip
            self.db.execute("delete from people where id = %s", ((self.count * 11) % (ROWS + 200),))
        self.db.close()

    def end(self):
        self.ending.set()
        self.join(60)


class Pair:
    """A worker with a source and a sink, and connections to both databases."""

    def __init__(self, folder, kafka, postgres):
        self.postgres, self.kafka, self.folder = postgres, kafka, folder
        self.group = f"r{uuid.uuid4().hex[:8]}"
        self.names = [postgres.create_database() for _ in range(2)]
        self.source, self.warehouse = (psycopg.connect(postgres.dsn(name), autocommit=True) for name in self.names)
        self.source.execute("create table people (id bigint primary key, name text, note text)")
        self.source.execute("create table lines (doc uuid, line int, v numeric(10, 2), primary key (doc, line))")
        self.source.execute(f"insert into people select g, 'name ' || g, 'note' from generate_series(1, {ROWS}) g")
        self.source.execute("insert into lines select md5((g / 3)::text)::uuid, g, g from generate_series(1, 300) g")
        self.worker = self.started("w1")

    def started(self, name):
        worker = one_worker.Worker(self.folder, self.kafka.bootstrap, self.group, name)
        worker.wait_ready()
        return worker

    def configure(self):
        databases = [conninfo_to_dict(self.postgres.dsn(name)) for name in self.names]
        source, sink = (
            {f"{prefix}.{key}": str(info.get(part) or "none") for key, part in PARTS.items()}
            for prefix, info in zip(("database", "warehouse"), databases, strict=True)
        )
        names = {"topic.prefix": self.group, "slot.name": self.group, "publication.name": self.group}
        self.worker.put("shop", {"connector.class": "postgres", **names, **source})
        self.worker.put(
            "warehouse",
            {
                "connector.class": "spark", "topics.regex": rf"{self.group}\.public\..*", "trigger.interval.ms": "100",
                "verify.range.rows": "1000", **sink,
            },
        )  # fmt: skip
        self.worker.wait(lambda: self.rows() == self.rows(self.source), "the rows in the warehouse", STARTED_S)

    def rows(self, db=None):
        try:
            return {
                table: sorted(map(repr, (db or self.warehouse).execute(f"select {columns} from {table}")))
                for table, columns in TABLES.items()
            }
        except psycopg.errors.UndefinedTable:
            return None

    def verify(self, *arguments):
        """The exit code, and the result as JSON."""
        argv = [COMMAND, "verify", "warehouse", "--url", self.worker.url, "--json", *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
        return done.returncode, json.loads(done.stdout), done.stderr

    def brought(self, table, key):
        """How often each key came as a row of a snapshot or as a deletion of a repair, by operation."""
        decoder = RecordDecoder(self.worker.schemas())
        found = Counter()
        for record in self.worker.read(f"{self.group}.public.{table}"):
            value = decoder.decode(record.value()) if record.value() else None
            if value is not None and value["source"]["snapshot"] == "true":
                row = value["before"] if value["op"] == "d" else value["after"]
                found[value["op"], row[key]] += 1
        return found

    def close(self):
        self.worker.kill()
        for db in (self.source, self.warehouse):
            db.close()
        for name in self.names:
            self.postgres.drop_database(name)


@pytest.fixture
def pair(tmp_path, kafka, postgres):
    made = Pair(tmp_path, kafka, postgres)
    try:
        made.configure()
        yield made
    finally:
        made.close()


def spoil(db):
    """Missing, surplus and other rows in both tables."""
    db.execute("delete from people where id % 100 = 1")
    db.execute("update people set name = 'spoilt', note = null where id % 100 = 2")
    db.execute("create temp table more as select * from people where id <= 50")
    db.execute("update more set id = id + 100000")
    db.execute("insert into people select * from more")
    db.execute("delete from lines where line % 50 = 1")
    db.execute("update lines set v = -1 where line % 50 = 2")
    db.execute("create temp table others as select * from lines where line = 7")
    db.execute("update others set line = 7000")
    db.execute("insert into lines select * from others")
    db.execute("drop table more, others")


def test_a_spoilt_warehouse_is_made_equal_each_row_comes_once_and_a_trial_changes_nothing(pair):
    before = pair.rows()
    spoil(pair.warehouse)
    spoilt, first = pair.rows(), pair.brought("people", "id")
    code, shown, _ = pair.verify("--repair", "--dry-run")
    assert (code, pair.rows()) == (1, spoilt)
    counts = {table["table"]: [table[kind] for kind in ("missing", "different", "extra")]
              for table in shown["result"]["repair"]["left"]["tables"]}  # fmt: skip
    assert counts == {"public.people": [30, 30, 49], "public.lines": [6, 6, 1]}
    code, shown, told = pair.verify("--repair")
    assert (code, shown["result"]["result"]["verdict"], shown["result"]["repair"]["rows"]) == (0, "equal", 122), told
    assert pair.rows() == before
    came = pair.brought("people", "id") - first
    assert set(came.values()) == {1}
    assert Counter(op for op, _ in came) == {"r": 60, "d": 49}
    assert pair.verify("--repair")[0] == 0
    assert "100003" not in told
    # No keys in what is asked for over REST, in the record of the comparison, or in the log.
    snapshots = plain_http.get(f"{pair.worker.url}/v1/connectors/shop/snapshots", timeout=30).text
    assert "100003" not in snapshots + pair.worker.log.read_text()


def test_it_is_made_equal_while_the_source_is_written_to_and_a_task_or_the_command_is_killed(pair):
    writer = Writer(pair.postgres.dsn(pair.names[0]))
    writer.start()
    try:
        spoil(pair.warehouse)
        argv = [COMMAND, "verify", "warehouse", "--url", pair.worker.url, "--repair"]
        broken_off = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def begun():
            found = pair.worker.get("/v1/connectors/shop/snapshots")["snapshots"]
            return [item for item in found if item["origin"] == "request"]

        pair.worker.wait(begun, "the repair's snapshot", STARTED_S)
        broken_off.kill()
        broken_off.wait()
        os.kill(pair.worker.starts("shop-0")[-1], signal.SIGKILL)
        os.kill(pair.worker.starts("warehouse-0")[-1], signal.SIGKILL)
        # The worker that led the repair ends too, and what was asked for goes on at the next one.
        pair.worker.kill()
        pair.worker = pair.started("w2")
        pair.worker.wait(lambda: pair.worker.task("warehouse")["state"] == "RUNNING", "the sink", STARTED_S)
        code, shown, told = pair.verify("--repair")
        assert (code, shown["result"]["result"]["verdict"]) == (0, "equal"), told
    finally:
        writer.end()
    assert writer.count > 50
    pair.worker.wait(lambda: pair.rows() == pair.rows(pair.source), "equal rows", STARTED_S)

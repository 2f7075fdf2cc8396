"""A warehouse that somebody has spoilt is compared, repaired by the source's task, and equal, while the source is written to."""

from __future__ import annotations

import random

import psycopg
import pytest
from cdcworker.connectors.comparison.opening import opened
from cdcworker.connectors.comparison.repair import repair_json, repaired_kinds_of
from cdcworker.connectors.verify.compare import CompareSettings, Comparison
from cdcworker.connectors.warehouses.postgres.writer import PostgresWriter
from cdcworker.connectors.warehouses.target_columns import OutputForm
from cdcworker.schemas import failpoints
from cdcworker.worker.diagnostics.repair import RepairPlan

from tests import change_streams
from tests.integration.connectors.postgres.postgres_reader import Reader

from .test_compare import LIMITS, Now, wanted

pytestmark = pytest.mark.postgres
ROWS = 400
COUNT = "select count(*) from people"


class Loop:
    """A source with its task, a warehouse with its writer, and what goes from one to the other."""

    def __init__(self, postgres, output, sink):
        self.postgres, self.output, self.sink = postgres, output, sink
        self.names = [postgres.create_database() for _ in range(2)]
        self.dsns = [postgres.dsn(name) for name in self.names]
        self.source, self.warehouse = (psycopg.connect(dsn, autocommit=True) for dsn in self.dsns)
        self.source.execute("create table people (id bigint primary key, name text, note text)")
        self.source.execute("create table lines (doc uuid, line int, v numeric(10, 2), primary key (doc, line))")
        self.source.execute(f"insert into people select g, 'name ' || g, 'note' from generate_series(1, {ROWS}) g")
        self.source.execute("insert into lines select md5((g / 3)::text)::uuid, g, g from generate_series(1, 100) g")
        self.reader = Reader(postgres, self.names[0], **{"snapshot.chunk.max.bytes": "20000"})
        self.stream, self.taken, self.written = change_streams.Stream(1), 0, 0
        self.writer = PostgresWriter(self.dsns[1], "sink", output=OutputForm(**output))
        self.writer.fence((1, 0))

    def bring(self):
        """Until the warehouse has what the source has."""
        self.reader.catch_up(self.source)
        changes = [change for change in self.reader.log[self.taken :] if change.op != "m"]
        self.taken = len(self.reader.log)
        self.stream.emit(*changes)
        records = self.stream.records[self.written :]
        self.written = len(self.stream.records)
        if records:
            assembler = self.stream.assembler(keeps_versions="versions" in self.output)
            self.writer.apply(assembler.build(change_streams.arrow(records), self.writer.ledger(), 1))

    def compared(self):
        """What differs, as verdicts by table, and the repair of it."""
        asked = wanted(self.dsns, topics=["people", "lines"], sink=self.sink)
        with opened(asked, LIMITS) as both:
            settings = CompareSettings(LIMITS, kept=repaired_kinds_of(both))
            tally = Comparison(both.source, both.target, lambda *_: Now(), settings).run(both.plans)
            plan = RepairPlan(repair_json(both, tally)["tables"])
        assert all(not state.reason for state in tally.tables)
        return {state.plan.source.name: dict(state.counts) for state in tally.tables if state.verdict != "equal"}, plan

    def repair(self, plan, meanwhile=lambda: None):
        """Each batch as a job of the task."""
        before = len(self.reader.log)
        for number, spec in enumerate(plan.batches):
            identity = f"repair {before} {number}"
            self.reader.jobs = ({"id": identity, "kind": "snapshot", "wanted": "RUNNING", "spec": spec, "own": True},)

            def ended(identity=identity):
                meanwhile()
                return identity in [item["id"] for item in self.reader.position["snapshot"].get("done", ())]

            self.reader.until(ended)
        return [change for change in self.reader.log[before:] if change.source["snapshot"] == "true"]

    def close(self):
        self.writer.close()
        self.reader.kill()
        for db in (self.source, self.warehouse):
            db.close()
        for name in self.names:
            self.postgres.drop_database(name)


FORMS = {
    "current": ({}, {}),
    "soft": ({"soft": True}, {"delete.mode": "soft"}),
    "versions": ({"versions": True}, {"output.mode": "scd2"}),
}


@pytest.fixture
def open_loop(postgres):
    made = []

    def make(form):
        made.append(Loop(postgres, *FORMS[form]))
        made[-1].reader.start().until(made[-1].reader.loaded)
        made[-1].bring()
        return made[-1]

    yield make
    failpoints.listen(None)
    for one in made:
        one.close()


def spoil(db):
    """20 rows are missing, 20 are others and 10 are surplus; of the other table 2 of each."""
    db.execute("delete from people where id % 20 = 1")
    db.execute("update people set name = 'spoilt', note = null where id % 20 = 2")
    db.execute("create temp table more as select * from people where id between 3 and 14 and id % 20 > 2 limit 10")
    db.execute("update more set id = id + 100000")
    db.execute("insert into people select * from more")
    db.execute("delete from lines where line in (5, 50)")
    db.execute("update lines set v = -1 where line in (6, 60)")
    db.execute("create temp table others as select * from lines where line in (7, 70)")
    db.execute("update others set line = line + 7000")
    db.execute("insert into lines select * from others; drop table more, others")


@pytest.mark.parametrize("form", sorted(FORMS))
def test_missing_other_and_surplus_rows_are_as_the_source_has_them_after_a_repair(open_loop, form):
    loop = open_loop(form)
    assert loop.compared()[0] == {}
    spoil(loop.warehouse)
    found, plan = loop.compared()
    assert found == {
        "people": {"missing": 20, "different": 20, "extra": 10},
        "lines": {"missing": 2, "different": 2, "extra": 2},
    }
    assert (plan.rows, [table["refused"] for table in plan.shown()["tables"]]) == (56, [[], []])
    came = loop.repair(plan)
    # Nothing but those rows, each once.
    assert len(came) == len({(change.table.path, change.op, change.position) for change in came}) == 56
    loop.bring()
    assert loop.compared()[0] == {}


def test_it_is_equal_although_the_source_writes_the_same_rows_amid_the_repair_and_the_task_is_killed(open_loop):
    loop = open_loop("current")
    spoil(loop.warehouse)
    rng, count = random.Random(7), [0]
    other = psycopg.connect(loop.dsns[0], autocommit=True)

    def write(place):
        # Also keys that only the warehouse has, and those that are missing there.
        if place.startswith("snapshot.") and count[0] < 200:
            count[0] += 1
            for key in (rng.randrange(1, ROWS), 100_003 + rng.randrange(12)):
                text = "insert into people values (%s, %s) on conflict (id) do update set name = excluded.name"
                other.execute(text, (key, f"written {count[0]}"))
                other.execute("delete from people where id in (%s, %s)", (key + 1, 100_003 + rng.randrange(12)))

    _, plan = loop.compared()
    failpoints.listen(write)
    looks = [0]

    def kill():
        looks[0] += 1
        if looks[0] in (3, 6):
            loop.reader.poll(commit=False)
            loop.reader.kill()
            loop.reader.start()

    loop.repair(plan, kill)
    failpoints.listen(None)
    other.close()
    assert count[0] > 0
    loop.bring()
    assert loop.compared()[0] == {}
    assert loop.source.execute(COUNT).fetchone() == loop.warehouse.execute(COUNT).fetchone()

"""Several slots of one connector against a real server: each row once, and no way to another split that loses or doubles."""

from __future__ import annotations

import json

import pytest
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.postgres.source.connector import PostgresSource
from cdcworker.schemas.errors import CdcError

from tests.contract.polled_task import materialise

from ..postgres_reader import Reader

pytestmark = pytest.mark.postgres
TABLES = [f"t{n}" for n in range(6)]


class TaskReader(Reader):
    """One task of several."""

    number = 0

    def start(self, troubles: dict | None = None) -> Reader:
        source = PostgresSource(self.config)
        context = TaskContext(
            self.config["name"], self.number, self.task_epoch, "i", self.state_dir,
            report=self.reports.append, jobs=lambda: self.jobs,
        )  # fmt: skip
        self.task = source.task(source.split(8)[self.number], context)
        try:
            self.task.open(json.loads(json.dumps(self.position)) if self.position else None)
        except BaseException:
            self.task.close()
            raise
        return self


@pytest.fixture
def split(postgres, database):
    made: list[TaskReader] = []

    def make(count: int, **config: str) -> list[TaskReader]:
        given = {"tasks.max": "8", "slot.count": str(count), **config}
        for number in range(count):
            made.append(TaskReader(postgres, database, **given))
            made[-1].number = number
        return made[-count:]

    yield make
    for one in made:
        if one.task:
            one.task.close()


def test_each_change_is_handed_on_by_one_of_several_slots(db, split):
    for table in TABLES:
        db.execute(f"create table {table}(id int primary key); insert into {table} select generate_series(1, 3)")
    tasks = split(3)
    for one in tasks:
        one.start()
        one.until(one.loaded)
    with db.transaction():
        for table in TABLES:
            db.execute(f"insert into {table} values (4); delete from {table} where id = 1")
    db.execute("select pg_logical_emit_message(true, 'p', 'once')")
    tasks[1].kill()
    tasks[1].start()
    for one in tasks:
        one.catch_up(db)
    changes = [change for one in tasks for change in one.log]
    assert [change.op for change in changes].count("m") == 1
    assert len([change for change in changes if change.op != "m"]) == 5 * len(TABLES)
    rows = {
        path[1]: sorted(found) for one in tasks for path, found in materialise(one.log).items() if path[0] == "public"
    }
    assert rows == {table: [(2,), (3,), (4,)] for table in TABLES}
    assert len({one.position["slot"] for one in tasks}) == 3
    # A snapshot that is asked for is one of all tasks, each reading what it has.
    for one in tasks:
        one.jobs = ({"id": "j", "kind": "snapshot", "wanted": "RUNNING", "spec": {"tables": ["public.t0"]}},)
    for one in tasks:
        one.until(
            lambda one=one: any(job["id"] == "j" and job["state"] == "COMPLETED" for job in one.reports[-1]["jobs"])
        )
    assert sum(change.op == "r" and change.table.path[1] == "t0" for one in tasks for change in one.log) == 6


def test_the_doctor_looks_at_every_slot_and_calls_none_of_them_forgotten(db, split):
    for table in TABLES:
        db.execute(f"create table {table}(id int primary key)")
    tasks = split(2)
    for one in tasks:
        one.start()
        one.until(one.loaded)
        one.kill()

    def examined() -> dict[str, list]:
        found: dict[str, list] = {}
        for item in PostgresSource(tasks[0].config).examine({one.number: one.position for one in tasks}):
            found.setdefault(item.check.name, []).append(item.result)
        return found

    found, names = examined(), [one.position["slot"] for one in tasks]
    for check in ("slot.state", "slot.position"):
        assert [result.measured.partition(":")[0] for result in found[check]] == names
        assert [result.status for result in found[check]] == ["ok", "ok"]
    assert [result.status for result in found["decoding.slots_free"]] == ["ok"]
    assert not any(name in result.message for result in found["risk.orphan_slots"] for name in names)
    db.execute("insert into t0 values (1)")
    db.execute("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", (names[1],))
    # The server may have moved on as well what the slot reads from, and then it looks like a new one.
    (code,) = [result.code for result in examined()["slot.position"] if result.status == "error"]
    assert code in ("postgres.slot_advanced", "postgres.slot_recreated")


def test_another_count_is_refused_by_every_task_and_the_old_one_goes_on_exactly(db, split):
    for table in TABLES:
        db.execute(f"create table {table}(id int primary key)")
    tasks = split(2)
    for one in tasks:
        one.start()
        one.until(one.loaded)
        one.kill()
    for table in TABLES:
        db.execute(f"insert into {table} values (1)")
    for count in (1, 3):
        for one in split(count):
            one.position = tasks[one.number].position if one.number < 2 else None
            with pytest.raises(CdcError) as caught:
                one.start()
            assert caught.value.code == "postgres.slots_changed"
        found = [item for item in PostgresSource(one.config).check() if item.code == "postgres.slots_changed"]
        assert [item.key for item in found] == ["slot.count"]
    for one in tasks:
        one.start()
        one.catch_up(db)
    assert sorted(change.table.path[1] for one in tasks for change in one.log) == TABLES

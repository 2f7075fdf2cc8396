"""The datagen source: rows by number, a steady rate, positions, and trouble on request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.datagen.config import CONFIG_DEF, parse
from cdcworker.connectors.datagen.connector import DatagenSource, DatagenTask, row_of, table_of
from cdcworker.connectors.datagen.injected_faults import FAULTS
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.errors import CdcError

BASE = {"name": "gen", "connector.class": "datagen", "topic.prefix": "gen"}


def dotted(config: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): text for name, text in config.items()}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept = 0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.now += seconds


def opened(position=None, task: int = 0, clock: Clock | None = None, **config: str) -> DatagenTask:
    clock = clock or Clock()
    share = DatagenSource({**BASE, **dotted(config)}).split(int(config.get("tasks_max", "1")))[task]
    made = DatagenTask(parse(share), TaskContext("gen", task, 1, "i", ""), clock, clock.sleep)
    made.open(position)
    return made


def numbers(task: DatagenTask, clock: Clock, seconds: float) -> Counter:
    """How many rows of each number come within so many seconds."""
    found: Counter = Counter()
    until = clock.now + seconds
    while clock.now < until:
        for change in task.poll().changes:
            found[change.table.path, change.after[1]] += 1
    return found


def test_rows_are_numbered_without_gaps_over_restarts_at_any_batch():
    clock, position, found = Clock(), None, []
    for _ in range(20):
        task = opened(position, clock=clock, rows_per_second="100")
        for _ in range(3):
            batch = task.poll()
            found += [change.after[1] for change in batch.changes]
            position = batch.position or position
    assert found == list(range(len(found)))
    assert position == {"v": 1, "next": len(found)}


def test_a_row_is_a_function_of_seed_table_and_number():
    settings = parse({**BASE, "seed": "7"})
    assert row_of(settings, table_of(0, "rows"), 5) == row_of(settings, table_of(0, "rows"), 5)
    others = {
        row_of(settings, table_of(0, "rows"), 6),
        row_of(settings, table_of(1, "rows"), 5),
        row_of(parse({**BASE, "seed": "8"}), table_of(0, "rows"), 5),
    }
    assert row_of(settings, table_of(0, "rows"), 5) not in others
    assert len(others) == 3
    (first, *_) = opened(seed="7").poll().changes
    assert first.after == row_of(settings, table_of(0, "rows"), 0)


def test_every_table_gets_each_number_in_one_transaction():
    batch = opened(tables="a,b", rows_per_second="-1").poll()
    assert [change.table.path[1] for change in batch.changes[:4]] == ["a", "b", "a", "b"]
    assert [tuple(change.position) for change in batch.changes[:3]] == [(1, 0, 0), (1, 1, 0), (2, 0, 0)]
    assert len(batch.changes) == 2 * batch.position["next"]
    assert batch.watermark["commit_lsn"] > batch.changes[-1].position.commit


def test_the_rate_is_shared_by_tasks_and_tables():
    clock = Clock()
    shares = [opened(task=n, clock=clock, tasks_max="2", tables="a,b", rows_per_second="40") for n in range(2)]
    for task in shares:
        task.open(None)
        rows = numbers(task, clock, 10.0)
        assert 198 <= rows.total() <= 206
        assert set(rows.values()) == {1}


def test_tasks_write_tables_of_their_own():
    paths = {opened(task=n, tasks_max="3").poll().changes[0].table.path for n in range(3)}
    assert paths == {("task0", "rows"), ("task1", "rows"), ("task2", "rows")}


def test_the_first_row_comes_at_once_and_a_slow_task_hardly_wakes():
    clock = Clock()
    task = opened(clock=clock, rows_per_second="0.1")
    assert len(task.poll().changes) == 1
    assert clock.slept == 0
    numbers(task, clock, 10.0)
    assert clock.slept <= 110


def test_a_busy_task_hands_on_batches_and_not_single_rows():
    clock, polls, rows = Clock(), 0, 0
    task = opened(clock=clock, rows_per_second="1000")
    until = clock.now + 10
    while clock.now < until:
        polls, rows = polls + 1, rows + len(task.poll().changes)
    assert 9_900 <= rows <= 10_100
    assert polls <= 210


@pytest.mark.parametrize(
    "config", [{"rows_per_second": "0"}, {"max_rows": "0"}, {"max_rows": "0", "rows_per_second": "-1"}]
)
def test_without_rows_only_watermarks_come(config):
    clock = Clock()
    task = opened(clock=clock, **config)
    batch = task.poll()
    assert (list(batch.changes), batch.position, batch.idle) == ([], None, True)
    assert batch.watermark["commit_lsn"] == 1
    assert clock.slept == 1


def test_it_ends_at_the_last_row():
    clock = Clock()
    task = opened(clock=clock, max_rows="25", rows_per_second="-1")
    assert sorted(number for _, number in numbers(task, clock, 5.0)) == list(range(25))
    assert task.poll().idle


def test_keys_repeat_as_updates():
    batch = opened(keys="3", rows_per_second="-1").poll()
    assert [(change.op, change.after[0]) for change in batch.changes[:5]] == [
        ("c", 0), ("c", 1), ("c", 2), ("u", 0), ("u", 1),
    ]  # fmt: skip


def test_rows_fit_their_schema_and_have_the_length_asked_for():
    encoder = Encoder("gen", lambda registrations: [1 for _ in registrations])
    batch = opened(row_bytes="1000", rows_per_second="-1", tables="a,b").poll()
    records = encoder.encode(batch.changes)
    assert {record.topic for record in records} == {"gen.task0.a", "gen.task0.b"}
    assert len(batch.changes[0].after[3]) == 1000


@pytest.mark.parametrize("position", [{}, {"v": 2, "next": 1}, {"v": 1, "next": -1}, {"v": 1, "next": "1"}, {"lsn": 3}])
def test_a_position_of_something_else_halts(position):
    with pytest.raises(CdcError) as caught:
        opened(position)
    assert caught.value.code == "datagen.position_invalid"


@pytest.mark.parametrize("kind", ["transient", "configuration", "data"])
def test_failures_come_with_the_class_asked_for_after_the_rows_before_them(kind):
    clock, rows, errors = Clock(), [], []
    position = None
    for _ in range(30):
        task = opened(position, clock=clock, fail_prob="0.1", fail_class=kind, rows_per_second="100")
        try:
            while True:
                batch = task.poll()
                rows += [change.after[1] for change in batch.changes]
                position = batch.position or position
        except CdcError as error:
            errors.append(error)
    assert rows == list(range(len(rows)))
    assert {error.code for error in errors} == {FAULTS[kind]}
    assert {error.kind for error in errors} == {{"configuration": "config"}.get(kind, kind)}
    assert rows


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"crash_prob": "1"}, -9),
        ({"hang_prob": "1"}, None),
        ({"spin_prob": "1"}, None),
        ({"hang_in": "start"}, None),
        ({"hang_in": "poll"}, None),
        ({"hang_in": "stop"}, None),
        ({}, 0),
    ],
)
def test_trouble_is_real(config, code):
    script = (
        "import sys, json\n"
        "from cdcworker.connectors.api.context import TaskContext\n"
        "from cdcworker.connectors.datagen.config import parse\n"
        "from cdcworker.connectors.datagen.connector import DatagenTask\n"
        "task = DatagenTask(parse(json.loads(sys.argv[1])), TaskContext('gen', 0, 1, 'i', ''))\n"
        "print('begun', flush=True); task.open(None); task.poll(); task.close()\n"
    )
    argv = [sys.executable, "-c", script, json.dumps({**BASE, **dotted(config)})]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=os.environ) as child:
        assert child.stdout.readline() == b"begun\n"
        try:
            assert child.wait(0.7 if code is None else 20) == code
        except subprocess.TimeoutExpired:
            assert code is None
        finally:
            child.kill()


def test_a_leak_takes_memory_at_its_rate():
    clock = Clock()
    task = opened(clock=clock, leak_bytes_per_second="1000000", rows_per_second="0")
    numbers(task, clock, 3.0)
    assert 2_800_000 <= sum(map(len, task._trouble._hoard)) <= 3_200_000


@pytest.mark.parametrize(
    "config",
    [
        {"tables": ""},
        {"tables": "a,a"},
        {"tables": "a.b"},
        {"fail_prob": "2"},
        {"fail_class": "odd"},
        {"hang_in": "bed"},
        {"rows_per_second": "x"},
        {"row_per_second": "1"},
    ],
)
def test_a_wrong_config_is_refused(config):
    wrong = [value for value in CONFIG_DEF.validate({**BASE, **dotted(config)}) if value.errors]
    assert len(wrong) == 1
    assert not [value for value in CONFIG_DEF.validate(BASE) if value.errors]

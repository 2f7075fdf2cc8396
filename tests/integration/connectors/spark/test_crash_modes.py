"""Drivers that are killed at steps of a batch while they write a change log, or whole transactions only."""

from __future__ import annotations

import copy
from collections import Counter

import psycopg
import pytest
from cdcworker.connectors.api.table_batch import OP
from cdcworker.connectors.warehouses.parquet.consistent_sets import WholeParquetWriter
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk

from ..spark_world import eventually, is_stopped
from .test_crashes import TABLES, WRITTEN, Matrix, NoCluster, drivers_are_killed

pytestmark = [
    pytest.mark.long,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.postgres,
    pytest.mark.timeout(1200),
]
LAST = {"postgres": "sink.after_commit", "parquet": "sink.after_commit@2"}
READERS = {True: WholeParquetWriter, False: ParquetWriter}
COLUMNS = ("id", "n", "a")
ROWS_S_MAX = 300


class Mode(Matrix):
    """What is there is compared as a whole, since each mode has its own way to say how far it is."""

    whole = False

    def assert_equal(self, what):
        eventually(lambda: self.rows() == self.wanted(), f"the rows after {what}", ROWS_S_MAX)

    def listed(self, table, names):
        if self.kind == "parquet":
            found = READERS[self.whole](LocalDisk(self.folder), self.world.name).rows(self.world.topic(table))
            rows = [] if found is None else [row for batch in found.batches for row in batch.to_pylist()]
            return [tuple(row[name] for name in names) for row in rows]
        with psycopg.connect(self.world.dsn, autocommit=True) as connection:
            if connection.execute("select to_regclass(%s)", (f"public.{table.path[-1]}",)).fetchone()[0] is None:
                return []
            return connection.execute(f"select {', '.join(names)} from public.{table.path[-1]}").fetchall()


class Logged(Mode):
    """Every change is a row."""

    def __post_init__(self):
        super().__post_init__()
        self.more = {"output.mode": "log"}
        self.changes = {table.path[-1]: Counter() for table in TABLES}

    def _note(self, table, op, id, n=None, a=None):
        self.changes[table.path[-1]][op, id, n, a] += 1

    def _put(self, table, model, row):
        super()._put(table, model, row)
        self._note(table, "c", *row[:3])

    def _update(self, table, model, row):
        super()._update(table, model, row)
        self._note(table, "u", *row[:3])

    def _delete(self, table, model, key):
        super()._delete(table, model, key)
        self._note(table, "d", *key)

    def wanted(self):
        return self.changes

    def rows(self):
        return {table.path[-1]: Counter(self.listed(table, (OP, *COLUMNS))) for table in TABLES}


class Whole(Mode):
    """All that is sent at a time is shown at a time."""

    whole = True

    def __post_init__(self):
        super().__post_init__()
        self.world.create(f"{self.world.name}.watermark", 1)
        self.more = {"consistency": "source"}
        self.shown = [{table.path[-1]: {} for table in TABLES}]

    def send(self):
        self.world.send(watermark=self.world.stream.lsn + 1)
        self.shown.append(copy.deepcopy(self.wanted()))

    def rows(self):
        names = [column.name for column in TABLES[0].columns]
        found = {table.path[-1]: self.listed(table, names) for table in TABLES}
        rows = {name: {(row[0],): list(row) for row in listed} for name, listed in found.items()}
        assert all(len(rows[name]) == len(listed) for name, listed in found.items())
        return rows

    def reach(self, process, point):
        eventually(lambda: is_stopped(process), point, ROWS_S_MAX)
        assert self.rows() in self.shown
        super().reach(process, point)


def killed(made, points, world, request, kind):
    matrix = made(world, NoCluster(), kind, request)
    drivers_are_killed(matrix, [(point, number > 0) for number, point in enumerate((*points, LAST[kind] + WRITTEN))])


@pytest.mark.parametrize("kind", ["postgres", "parquet"])
def test_a_change_log_has_each_change_once_whenever_drivers_are_killed(world, request, kind):
    killed(Logged, ["sink.staged", "sink.before_commit"], world, request, kind)


@pytest.mark.parametrize(
    ("kind", "points"),
    [
        ("postgres", ["sink.staged", "sink.before_commit"]),
        ("parquet", ["sink.after_commit", "sink.before_publish", "sink.after_publish"]),
    ],
)
def test_only_whole_transactions_are_shown_whenever_drivers_are_killed(world, request, kind, points):
    killed(Whole, points, world, request, kind)

"""Driver, executor and target die at each step of a batch, for each kind of warehouse: all tables end equal.

The driver runs its tasks in a standalone cluster. It stops itself at a step, somebody dies, and it goes on (or another one
begins). A driver gets SIGKILL where it stopped. An executor gets it in the middle of the task that comes after the step: it is
frozen first, and killed when the driver has sent it work that it cannot take. The target is killed too where it is a server.
Where it is a folder there is no process to kill: a file takes the place of the folder, so that nothing in it can be read, made
or written, until the driver has seen that; then all that had been written is there again, as after a server's restart.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from dataclasses import dataclass, field

import pytest
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk

from tests import change_streams
from tests.change_streams import NARROW
from tests.integration.connectors.warehouses.lake.test_writer import LAKE_S_MAX, lake_rows

from ..spark_world import await_end_of_group, eventually, is_stopped
from ..standalone import PARALLEL, unread
from .crash_targets import SERVERS

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.postgres,
    pytest.mark.timeout(1800),
    # pyspark leaves the sockets over which Arrow tables come to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Of renameat2(2)."""
HISTORY = change_streams.table(*NARROW.columns, key=(), name="history")
"""Without a key: nothing in it would hide a change that is applied twice."""
TABLES = (NARROW, HISTORY)
MERGING = "in the merge"
"""No step of the driver's own: tasks of the statement that merges are under way."""
STEPS = ("sink.batch_start", "sink.staged", "sink.before_commit")
"""A batch begins, and Spark has written the checkpoint of the one before; rows are staged; all but the commit is done."""
WRITTEN = ", checkpoint written"
"""Of a step: it is passed once Spark's checkpoint says that the batch is done, whatever the ledger says."""
TABLE_BY_TABLE = ("sink.after_commit", "sink.after_commit@2")
"""One of two tables is committed; both are."""
OF_A_SERVER = (*STEPS, "sink.merge", "sink.table_done", "sink.after_commit")
POINTS = {
    "postgres": OF_A_SERVER,
    "mysql": OF_A_SERVER,
    "clickhouse": (*STEPS, "sink.rows_written", "sink.table_done", "sink.after_commit"),
    "parquet": (*STEPS, *TABLE_BY_TABLE),
    "iceberg": (*STEPS, MERGING, *TABLE_BY_TABLE),
    "delta": (*STEPS, MERGING, *TABLE_BY_TABLE),
}
FINDS_ROWS = ("sink.merge", MERGING)
"""Rows that a batch is the first to bring are added without a merge."""
OF_A_LAKES_DRIVER = ("sink.before_commit@3",)
"""A new driver raises the epoch of each table first, which is a commit too."""
LAKES_CHECKPOINTS = (
    ("sink.before_commit", True),
    ("sink.before_commit@3", False),
    ("sink.after_commit@2", False),
    ("sink.after_commit@2", True),
)
SERVERS_CHECKPOINTS = (("sink.before_commit", False), ("sink.after_commit", False), ("sink.after_commit", True))
CHECKPOINTS = {
    **dict.fromkeys(SERVERS, SERVERS_CHECKPOINTS),
    "parquet": (("sink.before_commit", False), ("sink.after_commit@2", False), ("sink.after_commit@2", True)),
    "iceberg": LAKES_CHECKPOINTS,
    "delta": LAKES_CHECKPOINTS,
}
"""Before and after the ledger has the batch; `True` as for `drivers_are_killed`."""
KINDS = [
    "postgres",
    pytest.param("mysql", marks=pytest.mark.mysql),
    pytest.param("clickhouse", marks=pytest.mark.clickhouse),
    "parquet",
    pytest.param("iceberg", marks=pytest.mark.iceberg),
    pytest.param("delta", marks=(pytest.mark.iceberg, pytest.mark.delta)),
]


@dataclass
class Matrix:
    """One warehouse with two tables, and the sink task that fills them."""

    world: object
    cluster: object
    kind: str
    request: object
    more: dict = field(default_factory=dict)
    """Of the sink's configuration."""
    models: dict = field(default_factory=lambda: {table.path[-1]: change_streams.Model() for table in TABLES})
    round: int = 0

    def __post_init__(self):
        self.topics = [self.world.topic(table) for table in TABLES]
        for topic in self.topics:
            self.world.create(topic)
        self.folder = self.world.tmp_path / "lake"
        self.folder.mkdir()
        self.server = SERVERS[self.kind](self.world, self.request) if self.kind in SERVERS else None

    def start(self):
        lake = {"warehouse": self.kind, "warehouse.path": str(self.folder)}
        target = self.server.config() if self.server else lake
        return self.world.start(self.topics, **self.cluster.config(**PARALLEL, **target, **self.more))

    # -- changes ------------------------------------------------------------------------------------------------------

    def change(self):
        """Of each kind, and rows of the table without a key."""
        self.round += 1
        first = self.round * 1000
        for table in TABLES:
            model = self.models[table.path[-1]]
            for id in range(first, first + 100):
                self._put(table, model, (id, 1, f"a{id}", "b" * 20))
            if table is HISTORY:
                continue
            for id in range(first - 1000, first, 7):
                if (id,) in model.rows:
                    self._update(table, model, (id, self.round, "changed", None))
            for id in range(first, first + 100, 50):
                self._delete(table, model, (id,))
        self.send()

    def send(self):
        """All of it in one transaction."""
        self.world.send()

    def _put(self, table, model, row):
        self.world.stream.insert(table, row)
        model.insert((row[0],), row)

    def _update(self, table, model, row):
        """With the last column unchanged."""
        self.world.stream.update(table, row, (3,))
        model.update((row[0],), row, (3,))

    def _delete(self, table, model, key):
        self.world.stream.delete(table, key)
        del model.rows[key]

    # -- what is there ------------------------------------------------------------------------------------------------

    def assert_equal(self, what):
        """Once the sink says that it has applied everything."""
        ends = self._ends()
        eventually(lambda: self._applied(ends), f"the end of the topics after {what}", LAKE_S_MAX)
        wanted = self.wanted()
        # A server that is killed may lose what it had committed, and gets it again.
        eventually(lambda: self.rows() == wanted, f"the rows after {what}", 60)

    def _ends(self):
        return {f"{topic}-{number}": end for (topic, number), end in self.world.ends(self.topics).items()}

    def _applied(self, ends):
        """The last of a partition is the mark of a transaction's end."""
        said = [line["offsets"] for line in self.world.said() if "offsets" in line]
        return said and all(said[-1].get(place, 0) >= end - 1 for place, end in ends.items())

    def wanted(self):
        return {name: model.rows for name, model in self.models.items()}

    def rows(self):
        return {table.path[-1]: self._rows(table) for table in TABLES}

    def _rows(self, table):
        if self.kind in ("iceberg", "delta"):
            return lake_rows(self.request.getfixturevalue("spark"), self.world, self.kind, table)
        names = [column.name for column in table.columns]
        if self.server:
            listed = self.server.listed(table.path[-1], names)
        else:
            found = ParquetWriter(LocalDisk(self.folder), self.world.name).rows(self.world.topic(table))
            listed = [[row[name] for name in names] for batch in found.batches for row in batch.to_pylist()]
        rows = {(row[0],): list(row) for row in listed}
        assert len(rows) == len(listed)
        return rows

    def log(self):
        return (self.world.tmp_path / f"err{self.world.attempt}").read_text()

    # -- who dies -----------------------------------------------------------------------------------------------------

    def stop_at_next(self, point):
        """In the batch of changes that are made now."""
        place = "sink.staged" if point == MERGING else point.removesuffix(WRITTEN)
        self.world.stop_at(place, written=point.endswith(WRITTEN))
        self.change()

    def reach(self, process, point):
        """The driver stands at the step, or on its way through the statement that merges; with more to do afterwards."""
        eventually(lambda: is_stopped(process), point, LAKE_S_MAX)
        if point.endswith(WRITTEN):
            assert self.checkpointed()
        self.change()
        if point == MERGING:
            self.freeze()
            self.let_work(process)

    def checkpointed(self):
        """What Spark has written of batches that are done to it; what dead drivers left goes when another one starts."""
        return list(self.world.tmp_path.glob("sink/**/checkpoints/*/commits/[0-9]*"))

    def freeze(self):
        for pid in eventually(self.cluster.executors, "executors"):
            os.kill(pid, signal.SIGSTOP)

    def let_work(self, process):
        """The driver goes on until executors have got something to do from it, which they cannot."""
        os.kill(process.pid, signal.SIGCONT)
        eventually(
            lambda: any(unread(pid, process.pid) for pid in self.cluster.executors()), "work for executors", LAKE_S_MAX
        )

    def executor_dies(self, process, point):
        if point != MERGING:
            self.freeze()
            self.let_work(process)
        for pid in self.cluster.executors():
            os.kill(pid, signal.SIGKILL)

    def target_dies(self, process, point):
        seen = self.log().count("warehouse is unavailable")
        with self._away():
            for pid in [process.pid, *self.cluster.executors()]:
                os.kill(pid, signal.SIGCONT)
            eventually(
                lambda: process.poll() is not None or self.log().count("warehouse is unavailable") > seen,
                f"a word of the target that is away at {point}",
                LAKE_S_MAX,
            )
            assert process.poll() is None, (point, self.world.said()[-1])

    @contextlib.contextmanager
    def _away(self):
        if self.server:
            self.server.kill()
            try:
                yield
            finally:
                self.server.start()
            return
        nothing = self.world.tmp_path / "nothing"
        nothing.touch()
        exchange(self.folder, nothing)
        try:
            yield
        finally:
            exchange(self.folder, nothing)


def exchange(one, other):
    """Gives two files each other's name in one step: there is no moment in which a folder could be made."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), "renameat2", str(one))


class NoCluster:
    """The driver runs its tasks itself."""

    def config(self, **config):
        return config

    def executors(self):
        return []


@pytest.fixture
def matrix(world, standalone, request):
    return Matrix(world, standalone, request.getfixturevalue("kind"), request)


def test_a_parquet_folder_that_is_away_at_whichever_step_is_waited_for(world, request):
    matrix = Matrix(world, NoCluster(), "parquet", request)
    goes_on(matrix, matrix.target_dies)


@pytest.mark.long
@pytest.mark.parametrize("victim", ["executor", "target"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_goes_on_whoever_dies_at_whichever_step(matrix, kind, victim):
    goes_on(matrix, {"executor": matrix.executor_dies, "target": matrix.target_dies}[victim])
    if victim == "executor":
        assert matrix.log().count("query started") == 1


def goes_on(matrix, dies):
    matrix.change()
    process = matrix.start()
    matrix.assert_equal("the start")
    for point in POINTS[matrix.kind]:
        began = time.monotonic()
        matrix.stop_at_next(point)
        matrix.reach(process, point)
        dies(process, point)
        matrix.assert_equal(point)
        print(f"{matrix.kind} {point}: {time.monotonic() - began:.1f} s")
    matrix.world.stop(process)
    assert process.returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_drivers_that_are_killed_at_each_step_lose_and_double_nothing(matrix, kind):
    """With the checkpoint of a batch that a driver has applied, the next one begins in another place than its first."""
    more = OF_A_LAKES_DRIVER if MERGING in POINTS[kind] else ()
    points = [(point, point in FINDS_ROWS) for point in (*POINTS[kind], *more)]
    drivers_are_killed(matrix, (*points, ("sink.batch_start", True)))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_drivers_that_are_killed_when_a_checkpoint_is_written_lose_and_double_nothing(matrix, kind):
    drivers_are_killed(matrix, [(point + WRITTEN, later) for point, later in CHECKPOINTS[kind]])


@pytest.mark.sampled(2, "kills")
def test_a_driver_that_is_killed_when_ledger_and_checkpoint_are_written_doubles_nothing(world, request):
    matrix = Matrix(world, NoCluster(), "parquet", request)
    drivers_are_killed(matrix, [("sink.after_commit@2" + WRITTEN, False)])


@pytest.mark.sampled(2, "kills")
@pytest.mark.mysql
def test_a_driver_that_is_killed_before_mysql_commits_doubles_nothing(world, request):
    drivers_are_killed(Matrix(world, NoCluster(), "mysql", request), [("sink.before_commit", False)])


def drivers_are_killed(matrix, points):
    """One after the other, at these steps; `True`: once it has applied what was there."""
    for point, later in points:
        began = time.monotonic()
        if later:
            process = matrix.start()
            matrix.assert_equal(f"what came before {point}")
        matrix.stop_at_next(point)
        if not later:
            process = matrix.start()
        matrix.reach(process, point)
        process.kill()
        for pid in matrix.cluster.executors():
            os.kill(pid, signal.SIGCONT)
        assert process.wait() == -signal.SIGKILL
        await_end_of_group(process.pid)
        eventually(lambda: not matrix.cluster.executors(), "the end of the executors", 60)
        print(f"{matrix.kind} {point}{' later' * later}: {time.monotonic() - began:.1f} s", flush=True)
    process = matrix.start()
    matrix.assert_equal("all kills")
    matrix.world.stop(process)
    assert process.returncode == 0

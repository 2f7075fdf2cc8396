"""Delta tables in a bucket, on a real server, with Spark: what every warehouse has to do, dead letters, consistent sets, faults of the
store while Spark writes, and readers of others."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from cdcworker.connectors.sink_engine.paused_tables import PausedTables
from cdcworker.connectors.warehouses.lake import file_faults as lakefaults
from cdcworker.connectors.warehouses.lake.consistent_sets import WholeLakeWriter
from cdcworker.connectors.warehouses.lake.delta import DeltaTables
from cdcworker.connectors.warehouses.lake.delta_files.file_tables import FileTables
from cdcworker.connectors.warehouses.lake.tables import LakeName
from cdcworker.connectors.warehouses.lake.writer import LakeWriter
from cdcworker.connectors.warehouses.target_columns import OutputForm
from cdcworker.schemas.errors import CdcError

from tests import change_streams
from tests.conftest import REQUIRE_PARTS
from tests.contract import dead_letters
from tests.contract import warehouses as contract
from tests.s3_faults import FaultProxy
from tests.s3_server import ACCESS_KEY, BUCKET, HOST, SECRET_KEY, bucket_at

from . import test_consistent_sets as sets
from . import test_writer as lakes
from .test_dead_letters import Lake as LettersOfLake
from .test_delta_s3_faults import put_of
from .test_file_faults import Waits, waited

pytestmark = [
    pytest.mark.s3,
    pytest.mark.spark,
    pytest.mark.delta,
    pytest.mark.timeout(1800),
    # pyspark leaves the sockets over which Arrow tables come to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]
ORDERS = LakeName("public", "orders")
BySql = lakes.BySql
PYTHON = Path(sys.prefix) / "clients" / "bin" / "python"
READ = """
import json, sys
from deltalake import DeltaTable
table = DeltaTable(sys.argv[1], storage_options=json.loads(sys.argv[2]))
rows = [[row[name] for name in ("id", "n", "a", "big")] for row in table.to_pyarrow_table().to_pylist()]
print(json.dumps({"version": table.version(), "rows": rows}))
"""


def lake_of(files, kind=DeltaTables, **more):
    """A new view of the lake below a prefix."""
    return kind(files.place("").rstrip("/"), files=FileTables(files), **more)


@pytest.fixture
def files(s3):
    return s3.files(uuid.uuid4().hex)


def opened(spark, files, epoch=(1, 0), kind=DeltaTables, **more):
    writer = LakeWriter(lake_of(files, kind, **more), "sink")
    writer.attach(lambda: spark)
    writer.fence(epoch)
    return writer


class Bucket(lakes.Lake):
    kind = DeltaTables

    @pytest.fixture
    def open_writer(self, spark, files):
        self._files, writers = files, []

        def make(epoch=(1, 0), sink="sink", parallel_tables=1, **output):
            writer = LakeWriter(self.tables(), sink, output=OutputForm(**output), parallel_tables=parallel_tables)
            writers.append(writer)
            writer.attach(lambda: spark)
            writer.fence(epoch)
            self._writer = writer
            return writer

        yield make
        for writer in writers:
            writer.close()

    def tables(self):
        return lake_of(self._files, self.kind)

    def drop_table(self, writer):
        """No catalog holds it: its files are all there is."""
        for home in ("public/orders", "public/orders/_delta_log"):
            self._files.remove(f"{home}/{name}" for name in self._files.names(home, ""))


@lakes.long_but_for((), contract.Contract, contract.ByHand, lakes.Lake)
class TestDelta(Bucket):
    """Rows by files of the sink's own, the rest by Spark."""


@lakes.long_but_for((), contract.Contract, contract.ByHand, lakes.Lake)
class TestDeltaBySql(Bucket):
    kind = BySql


@lakes.long_but_for((), dead_letters.Rows, dead_letters.Contract)
class TestDeadLetters(LettersOfLake):
    @pytest.fixture(autouse=True)
    def _bucket(self, files):
        self._files = files

    def tables(self, root):
        return lake_of(self._files)


class BucketLake(sets.Lake):
    """Writers of one lake in a bucket, and what its readers see."""

    def __init__(self, spark, files):
        self.files = files
        super().__init__(spark, "delta", files.place(""))

    def writer(self):
        made = WholeLakeWriter(lake_of(self.files), self.name)
        made.attach(lambda: self.spark)
        return made


@pytest.mark.long
def test_every_set_has_whole_transactions_also_when_drivers_end_again_and_again(spark, files, tmp_path):
    sets.drivers_end_between_two_tables(BucketLake(spark, files), tmp_path, 8)


# -- faults while Spark writes ------------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(s3):
    with FaultProxy(HOST, s3.port) as proxy:
        yield proxy


@pytest.mark.long
@pytest.mark.parametrize("how", ["lost", "cut", "busy"])
def test_whichever_put_of_spark_fails_each_row_is_there_once(spark, s3, proxy, how):
    """A table is made, gets columns, and rows by MERGE; each put of that fails once."""
    prefix, stream = uuid.uuid4().hex, change_streams.Stream(1)
    writer = opened(spark, bucket_at(proxy.endpoint, prefix), kind=BySql)
    fault = proxy.plan(how, once_each(put_of("/public/orders/")), times=10_000)
    for number in range(3):
        stream.insert(change_streams.NARROW, (number, 1, "a", "b"))
        if number:
            stream.update(change_streams.NARROW, (number - 1, 2, "c", "d"))
        contract.run(stream, writer)
    assert len(fault.seen) > 6
    assert any("_delta_log" in path for path in fault.seen)
    assert any(path.partition("?")[0].endswith(".parquet") for path in fault.seen)
    writer.close()
    reader = opened(spark, s3.files(prefix), (1, 1))
    assert contract.rows(reader, "id", "n") == [(0, 2), (1, 2), (2, 1)]
    assert dict(reader.ledger()) == {(contract.TOPIC, 0): stream.records[-1]["offset"] + 1}
    reader.close()


def once_each(hits):
    """Of requests that `hits` chooses the first one for each path."""
    seen = set()

    def first(method, path):
        if not hits(method, path) or path in seen:
            return False
        seen.add(path)
        return True

    return first


@pytest.mark.long
def test_of_two_sparks_one_makes_a_version(spark, files):
    """Whatever Delta's client knows of the log: the store decides."""
    one, stream = opened(spark, files, kind=BySql), change_streams.Stream(1)
    stream.insert(change_streams.NARROW, (1, 1, "a", "b"))
    contract.run(stream, one)
    log = f"{ORDERS.schema}/{ORDERS.table}/_delta_log"
    newest = max(files.names(log, ".json"))
    system, path = one._tables._files(f"{one._tables._path(ORDERS)}/_delta_log/{newest}")
    made = system.create(path, False)
    made.write(7)
    with pytest.raises(Exception, match="FileAlreadyExistsException"):
        made.close()
    one.close()


@pytest.mark.long
@pytest.mark.parametrize("kind", [DeltaTables, BySql])
def test_what_the_store_refuses_while_a_task_runs_has_its_code(spark, s3, kind):
    writer, stream = opened(spark, bucket_at(s3.endpoint, uuid.uuid4().hex), kind=kind), change_streams.Stream(1)
    stream.insert(change_streams.NARROW, (1, 1, "a", "b"))
    contract.run(stream, writer)
    bucket = writer._tables._bucket
    wrong = bucket_at(s3.endpoint, "x", **{"warehouse.s3.secret.key": "wrong"})._client
    bucket._opened = wrong
    for table in writer._tables._file_tables._tables.values():
        table.files._opened = wrong
    stream.insert(change_streams.NARROW, (2, 1, "a", "b"))
    with pytest.raises(CdcError) as caught:
        contract.run(stream, writer)
    assert caught.value.code == "spark.target_auth"
    assert "wrong" not in str(caught.value)
    writer.close()


@pytest.mark.long
@pytest.mark.parametrize("how", ["missing", "text"])
def test_a_table_whose_files_are_broken_stands_still_alone(spark, files, monkeypatch, how):
    monkeypatch.setattr(lakefaults, "WAIT_S", 0.0)
    monkeypatch.setattr(type(files), "checks_every_s", 0.0)
    other = change_streams.table(change_streams.ID, name="other")
    topics = [contract.TOPIC, contract.OTHER]
    stream, paused, writer = change_streams.Stream(1), PausedTables(True), opened(spark, files)

    def step():
        found = paused.reading(topics)
        paused.claim(writer.claim, found)
        records = [record for record in stream.records if record["topic"] in paused.reading(found)]
        batch = stream.assembler().build(change_streams.arrow(records), writer.ledger(), 1)
        paused.apply(writer.apply, batch)

    for number in range(3):
        stream.insert(change_streams.NARROW, (number, 1, "a", "b"))
        stream.insert(other, (number,))
        step()
    for name in files.names("public/orders", ".parquet"):
        if how == "text":
            files.replace(f"public/orders/{name}", b"x")
        else:
            files.remove([f"public/orders/{name}"])
    stream.update(change_streams.NARROW, (1, 2, "c", "d"))
    stream.insert(other, (9,))
    for _ in range(10):
        with contextlib.suppress(Waits):
            waited(step)
            break
    assert contract.rows(writer, "id", topic=contract.OTHER)[-1] == (9,)
    assert paused._errors[contract.TOPIC].code == "spark.target_broken"
    writer.close()


# -- readers and offsets ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_delta_rs_reads_the_rows_of_a_plain_table_and_its_checkpoint(spark, s3, files):
    if not PYTHON.is_file():
        (pytest.fail if REQUIRE_PARTS else pytest.skip)("missing part delta-rs: `make clients`")
    stream, writer = change_streams.Stream(1), opened(spark, files, plain=True)
    for turn in range(2):
        for number in range(3000 * turn, 3000 * turn + 3000):
            stream.insert(change_streams.NARROW, (number, turn, f"a{number}", "x" * 50))
        for number in range(turn, 3000 * turn, 7):
            stream.update(change_streams.NARROW, (number, 9, "again", "y"))
            stream.delete(change_streams.NARROW, (number + 1,))
        contract.run(stream, writer)
        writer._tables.tend(ORDERS)
        found = read(s3, files.place("/".join(ORDERS)))
        assert found["version"] == writer._tables.load(ORDERS).version
        assert sorted(map(tuple, found["rows"])) == sorted(contract.rows(writer, "id", "n", "a", "big"))
        assert files.names("public/orders/_delta_log", ".checkpoint.parquet")
    writer.close()


def read(s3, uri):
    login = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1"}
    options = {**login, "AWS_ENDPOINT_URL": s3.endpoint, "AWS_ALLOW_HTTP": "true"}
    done = subprocess.run(
        [str(PYTHON), "-c", READ, uri, json.dumps(options)],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-1000:]
    return json.loads(done.stdout)


@pytest.mark.long
def test_spark_and_files_of_our_own_write_one_table_in_turn(spark, files):
    stream, model = change_streams.Stream(1), change_streams.Model()
    for turn, kind in enumerate(itertools.islice(itertools.cycle((DeltaTables, BySql)), 4)):
        for number in range(turn * 1000, turn * 1000 + 1000):
            row = (number, turn, f"a{number}", "x" * 50)
            stream.insert(change_streams.NARROW, row)
            model.insert((number,), row)
        for number in range(turn, turn * 1000, 7):
            stream.update(change_streams.NARROW, (number, 99 + turn, "again", None), (3,))
            model.update((number,), (number, 99 + turn, "again", None), (3,))
        writer = opened(spark, files, (1, turn), kind)
        contract.run(stream, writer)
        writer._tables.tend(ORDERS)
        found = contract.rows(writer, "id", "n", "a", "big")
        writer.close()
        assert {(row[0],): list(row) for row in found} == model.rows


@pytest.mark.long
def test_offsets_outlive_the_log_that_held_them(spark, files):
    stream, writer = change_streams.Stream(1), opened(spark, files)
    stream.insert(change_streams.NARROW, (1, 1, "a", "b"))
    contract.run(stream, writer)
    writer._tables.tend(ORDERS)
    writer._tables._log(ORDERS)[0].checkpoint()
    log = "public/orders/_delta_log"
    files.remove(f"{log}/{name}" for name in sorted(files.names(log, ".json"))[:-1])
    again = opened(spark, files, (1, 1))
    assert dict(again.ledger()) == {(contract.TOPIC, 0): stream.records[-1]["offset"] + 1}
    again.close()
    writer.close()


# -- a worker's sink ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.postgres
def test_a_sink_that_is_killed_again_and_again_loses_and_doubles_nothing(world, spark, s3, files):
    points = ("sink.before_commit=kill@1", "sink.files_written=kill@2", "sink.after_commit=kill@1")
    login = {"access.key": ACCESS_KEY, "secret.key": SECRET_KEY, "endpoint": s3.endpoint, "path.style.access": "true"}
    lake = {"warehouse": "delta", "warehouse.path": files.place("").rstrip("/")}
    lake.update({f"warehouse.s3.{name}": value for name, value in login.items()})

    def rows():
        writer = LakeWriter(lake_of(files), world.name)
        writer.attach(lambda: spark)
        found = contract.rows(writer, "id", "n", "a", "big", topic=world.topic(change_streams.NARROW))
        writer.close()
        assert len({row[0] for row in found}) == len(found)
        return {(row[0],): list(row) for row in found}

    lakes.killed_and_started_again(world, spark, points, config=lake, rows=rows)
    assert lake["warehouse.path"].startswith(f"s3://{BUCKET}/")

"""Versions of rows in a MySQL warehouse (`output.mode=scd2`)."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time

import pytest
from cdcworker.connectors.api.table_batch import IS_CURRENT, POSITION
from cdcworker.connectors.warehouses.mysql import statements
from cdcworker.connectors.warehouses.mysql.verify_side import MySqlTarget
from cdcworker.connectors.warehouses.mysql.version_statements import ALL_KEYS
from cdcworker.connectors.warehouses.mysql.writer import MySqlWriter
from cdcworker.connectors.warehouses.sql.writer import PRUNE_EVERY_S
from cdcworker.connectors.warehouses.target_columns import OutputForm

from tests import change_streams
from tests.change_streams import NARROW
from tests.contract import versions as contract
from tests.contract.warehouses import TOPIC
from tests.version_model import RandomChanges, VersionedStream, assert_equal, versions

from .test_redrive import Sink

pytestmark = pytest.mark.mysql
PLACES = ("sink.before_commit@2", "sink.merge", "sink.table_done", "sink.staged", "sink.after_commit")
KILLED = """
import pickle, sys
from cdcworker.connectors.arrow.assembler import Assembler
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.connectors.warehouses.mysql.writer import MySqlWriter
from cdcworker.connectors.warehouses.target_columns import OutputForm
login, epoch, schemas, topic, pieces = pickle.load(sys.stdin.buffer)
writer = MySqlWriter(login, "sink", output=OutputForm(versions=True))
writer.fence((epoch, 0))
writer.claim([topic])
assembler = Assembler(EnvelopeSchemas(schemas, wait_s_max=0), keeps_versions=True)
for piece in pieces:
    batch = assembler.build(piece, writer.ledger(), 1)
    if batch.offsets:
        writer.apply(batch)
"""


@pytest.fixture
def open_writer(mysql):
    mysql.wipe()
    writers = []

    def make(epoch=(1, 0), **output):
        writers.append(MySqlWriter(mysql.login(), "sink", output=OutputForm(**{"versions": True, **output})))
        writers[-1].fence(epoch)
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()


class Server:
    @pytest.fixture(autouse=True)
    def _server(self, mysql):
        self.server = mysql

    def rewind(self, partition):
        where = f"topic = '{TOPIC}' and `partition` = {partition}"
        self.server.ask(f"update _cdcworker.ledger set next_offset = 0, applied = null where {where}")

    def drop_table(self, writer):
        self.server.ask("drop table public.orders", f"delete from _cdcworker.ledger where topic = '{TOPIC}'")


@pytest.mark.long
class TestVersions(Server, contract.Versions):
    pass


class TestVersionsInBrief(Server):
    """What of the contract says most, for the daily runs, and what is MySQL's own."""

    again = contract.Versions.again
    test_a_history = contract.Versions.test_a_history_is_the_models_after_random_changes
    test_offsets_are_reset = contract.Versions.test_it_is_so_when_partitions_come_unevenly_and_offsets_are_reset
    test_null_keys = contract.Versions.test_keys_of_several_columns_and_keys_with_null

    def test_an_as_of_query_has_the_rows_of_that_time(self, open_writer):
        """As the documentation has it."""
        stream, writer = VersionedStream(), open_writer()
        RandomChanges(stream, 5, reads=False).run(30)
        then, wanted = stream.events[-1].at, sorted(stream.rows.values())
        RandomChanges(stream, 6, reads=False).run(30)
        contract.run(stream, writer)
        at = f"'{then:%Y-%m-%d %H:%M:%S.%f}'"
        where = f"_cdc_valid_from <= {at} and (_cdc_valid_to > {at} or _cdc_valid_to is null)"
        assert sorted(self.server.ask(f"select id, n, a, big from public.orders where {where}")) == wanted

    def test_a_comparison_reads_the_current_versions_alone(self, open_writer, mysql):
        stream, writer = VersionedStream(), open_writer()
        RandomChanges(stream, 7).run(30)
        contract.run(stream, writer)
        with contextlib.closing(MySqlTarget(mysql.login(), "sink", POSITION)) as side:
            table = side.table("public", "orders")
        assert (table.key, table.position) == (("id",), POSITION)
        text = statements.select(("public", "orders"), ["id", "n", "a", "big"], shows=IS_CURRENT)
        assert sorted(self.server.ask(text), key=repr) == sorted(stream.rows.values(), key=repr)

    def test_a_column_of_positions_may_get_another_name(self, open_writer):
        stream = VersionedStream()
        stream.insert(NARROW, (1, 1, "a", "b"))
        contract.run(stream, open_writer(position="seen_at"))
        stream.update(NARROW, (1, 2, "a", "b"))
        contract.run(stream, open_writer((2, 0), position="changed_at"))
        found = self.server.ask("select n, _cdc_is_current from public.orders order by changed_at")
        assert list(found) == [(1, 0), (2, 1)]

    def test_deletes_are_forgotten_once_nothing_older_can_come_and_truncates_never(self, open_writer):
        stream, writer = VersionedStream(partitions=1), open_writer()
        stream.insert(NARROW, (1, 1, "a", "b"))
        stream.truncate(NARROW)
        stream.insert(NARROW, (2, 1, "a", "b"))
        stream.delete(NARROW, (2,))
        contract.run(stream, writer)
        ends = f"select sum(`key` = x'{ALL_KEYS.hex()}'), count(*) from _cdcworker.version_end"
        assert self.server.ask(ends) == ((1, 2),)
        for id in (3, 4):
            writer._pruned = time.monotonic() - 2 * PRUNE_EVERY_S
            stream.insert(NARROW, (id, 1, "a", "b"))
            contract.run(stream, writer)
        assert self.server.ask(ends) == ((1, 1),)
        assert_equal(versions(writer, TOPIC), stream.wanted())


class TestLetters(contract.Letters):
    @pytest.fixture
    def open_sink(self, mysql):
        mysql.wipe()
        sinks = []

        def make(**output):
            sinks.append(Sink(mysql, **output))
            return sinks[-1]

        yield make
        for sink in sinks:
            sink.close()


@pytest.mark.long
def test_drivers_that_are_killed_in_a_batch_leave_each_version_once(mysql, open_writer):
    stream = VersionedStream()
    RandomChanges(stream, 3).run(40)
    pieces = [change_streams.arrow(stream.records[start : start + 20]) for start in range(0, len(stream.records), 20)]
    for epoch, place in enumerate(PLACES, 1):
        name, _, nth = place.partition("@")
        child = subprocess.run(
            [sys.executable, "-c", KILLED],
            input=pickle.dumps((mysql.login(), epoch, stream.schemas, TOPIC, pieces)),
            env={**os.environ, "CDC_FAILPOINTS": f"{name}=kill@{nth or 1}"},
            timeout=120,
            check=False,
        )
        assert child.returncode == -signal.SIGKILL
    writer = open_writer((9, 0))
    contract.run(stream, writer)
    assert_equal(versions(writer, TOPIC), stream.wanted())

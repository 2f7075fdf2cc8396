"""Versions of rows in Delta tables that are written as files, without Spark: an old one is closed in the commit of the next."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from cdcworker.connectors.api.table_batch import SinkBatch
from cdcworker.connectors.warehouses.target_columns import OutputForm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import change_streams
from tests.contract import versions as contract
from tests.contract.warehouses import TOPIC
from tests.version_model import RandomChanges, VersionedStream, assert_equal, versions

from .file_lake import opened


def open_writer(root, epoch=(1, 0), **more):
    return opened(root, epoch, output=OutputForm(versions=True), **more)


@pytest.mark.parametrize("plain", [False, True], ids=["vectors", "plain"])
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.sampled_from([1, 3, 17]))
def test_a_history_is_the_models_whatever_the_batches(tmp_path_factory, plain, seed, size):
    stream, writer = VersionedStream(), open_writer(tmp_path_factory.mktemp("versions"), plain=plain)
    RandomChanges(stream, seed, truncates=False).run(40)
    contract.run(stream, writer, range(0, len(stream.records), size))
    assert_equal(versions(writer, TOPIC), stream.wanted())


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_it_is_so_when_partitions_come_unevenly_and_again(tmp_path_factory, seed):
    root, epochs, chance = tmp_path_factory.mktemp("again"), itertools.count(1), random.Random(seed)
    stream, writer = VersionedStream(), open_writer(root, (next(epochs), 0))
    RandomChanges(stream, seed, keeps=False, truncates=False).run(40)
    writer.claim([TOPIC])
    for number in range(3):
        for batch in contract.unevenly(stream, chance):
            contract.apply(stream, writer, batch, number)
        writer.alter((next(epochs), 0), {(TOPIC, number % stream.partitions): 0})
        writer = open_writer(root, (next(epochs), 0))
        writer.claim([TOPIC])
    contract.run(stream, writer)
    assert_equal(versions(writer, TOPIC), stream.wanted())


def test_of_a_row_that_changed_often_only_the_last_version_is_read(tmp_path, monkeypatch):
    stream, writer = VersionedStream(partitions=1), open_writer(tmp_path)
    stream.insert(change_streams.NARROW, (1, 0, "a", "b"))
    for n in range(30):
        stream.update(change_streams.NARROW, (1, n, "a", "b"))
    contract.run(stream, writer)
    found = []
    current = writer._tables.current

    def counted(*args):
        found.append(current(*args))
        return found[-1]

    monkeypatch.setattr(writer._tables, "current", counted)
    stream.update(change_streams.NARROW, (1, 99, "a", None), (3,))
    contract.run(stream, writer)
    assert [each.rows.num_rows for each in found if "n" in each.rows.column_names] == [1]
    assert_equal(versions(writer, TOPIC), stream.wanted())


def test_a_batch_without_a_change_moves_the_offsets_alone(tmp_path):
    """Its records were all set aside."""
    stream, writer = VersionedStream(partitions=1), open_writer(tmp_path)
    stream.insert(change_streams.NARROW, (1, 0, "a", "b"))
    contract.run(stream, writer)
    writer.apply(SinkBatch([], {(TOPIC, 0): (1, 3)}, 2))
    assert writer.ledger()[TOPIC, 0] == 3
    assert_equal(versions(writer, TOPIC), stream.wanted())


def test_a_truncate_before_the_first_row_ends_what_comes_behind_it(tmp_path):
    stream, writer = VersionedStream(partitions=1), open_writer(tmp_path)
    stream.insert(change_streams.NARROW, (1, 0, "a", "b"))
    stream.truncate(change_streams.NARROW)
    late, cut = stream.records
    writer.claim([TOPIC])
    batch = stream.assembler(keeps_versions=True).build(change_streams.arrow([cut]), {}, 1)
    # In a topic without a schema of its key nobody knows a column yet.
    bare = [replace(part, key=()) for part in batch.tables]
    writer.apply(replace(batch, tables=bare, offsets={(TOPIC, 1): (0, 1)}, applied={}))
    contract.apply(stream, writer, [late], 2)
    assert_equal(versions(writer, TOPIC), stream.wanted())

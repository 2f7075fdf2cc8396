"""A table that a schema change stops stands still alone, and goes on from where it stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.connectors.sink_engine.paused_tables import RETRY_S_MAX, RETRY_S_MIN, PausedTables
from cdcworker.connectors.sink_errors import DATA_LOST, SCHEMA_REFUSED, TARGET_BROKEN
from cdcworker.connectors.warehouses.parquet.writer import ParquetWriter
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.connectors.warehouses.table_state import Manifests, schema_text
from cdcworker.schemas.errors import CdcError

from tests.contract import warehouses as contract
from tests.contract.warehouses import ID, OTHER, column, table


def of_type(type_, source_type, name="orders"):
    return table(ID, column("n", type_, source_type), name=name)


def opened(root, enabled=True):
    writer = ParquetWriter(LocalDisk(root), "sink")
    writer.fence((1, 0))
    return contract.TwoTables(writer, enabled)


def refused(world):
    world.stream.insert(of_type("boolean", "boolean"), (1, True))
    world.run()
    world.stream.insert(of_type("double", "double precision"), (1, 5.5), "u")
    world.stream.insert(of_type("int", "integer", "other"), (7, 7))
    world.run()


def test_the_others_go_on_and_its_offsets_stand_still(tmp_path):
    world = opened(tmp_path)
    refused(world)
    assert contract.rows(world.writer, "id", "n", topic=OTHER) == [(7, 7)]
    assert contract.rows(world.writer, "id", "n") == [(1, True)]
    assert world.paused.topics == {contract.TOPIC}
    assert world.writer.ledger()[contract.TOPIC, 0] == world.stream.records[0]["offset"] + 1
    world.stream.insert(of_type("int", "integer", "other"), (8, 8))
    world.run()
    assert contract.rows(world.writer, "id", "n", topic=OTHER) == [(7, 7), (8, 8)]


def test_once_its_target_fits_it_goes_on_from_where_it_stopped(tmp_path):
    world = opened(tmp_path)
    refused(world)
    assert not world.paused.due()
    # A person takes the column out of the table's state, which makes room for one of the new type.
    manifests = Manifests(world.writer._storage, world.writer._folder(contract.TOPIC))
    state = manifests.newest()
    manifests.commit(replace(state, schema=schema_text(state.arrow.remove(state.arrow.get_field_index("n")))))
    world.now = RETRY_S_MIN
    assert world.paused.due()
    world.run()
    assert world.paused.topics == frozenset()
    assert contract.rows(world.writer, "id", "n") == [(1, 5.5)]


def test_a_table_that_stays_refused_is_tried_less_and_less(tmp_path):
    world = opened(tmp_path)
    refused(world)
    for waited in (1, 2, 4):
        world.now += RETRY_S_MIN * waited - 1
        assert not world.paused.due()
        world.now += 1
        assert world.paused.due()
        world.run()
        assert world.paused.topics == {contract.TOPIC}


def test_without_the_policy_the_error_is_the_tasks(tmp_path):
    with pytest.raises(CdcError) as caught:
        refused(opened(tmp_path, enabled=False))
    assert caught.value.code == "spark.schema_refused"
    assert caught.value.where["topic"] == contract.TOPIC


def test_how_many_tables_stand_still_is_told_in_numbers(tmp_path):
    world = opened(tmp_path)
    assert world.paused.numbers() == {"paused": {}, "tables_held": 0}
    refused(world)
    assert world.paused.numbers()["tables_held"] == 1
    assert list(world.paused.numbers()["paused"]) == [contract.TOPIC]


def test_a_table_that_stands_still_is_claimed_all_the_same_but_not_one_whose_files_are_broken():
    paused, claimed = PausedTables(True, lambda: 0.0), []
    topics = (contract.TOPIC, OTHER)
    assert paused.take(CdcError(SCHEMA_REFUSED, "no", where={"topic": OTHER}))
    paused.claim(lambda wanted: claimed.append(list(wanted)), topics)
    broken = PausedTables(True, lambda: 0.0)
    assert broken.take(CdcError(TARGET_BROKEN, "no", where={"topic": OTHER}))
    broken.claim(lambda wanted: claimed.append(list(wanted)), topics)
    assert claimed == [list(topics), [contract.TOPIC]]


def test_a_table_that_is_tried_again_is_told_as_paused_until_a_batch_of_its_is_applied(tmp_path):
    world = opened(tmp_path)
    refused(world)
    told = world.paused.numbers()
    world.now += RETRY_S_MIN
    assert contract.TOPIC in world.paused.reading(world.topics)
    assert world.paused.topics == frozenset()
    assert world.paused.numbers() == told
    world.run()
    assert (world.paused.topics, world.paused.numbers()) == ({contract.TOPIC}, told)
    # What it cannot take is gone, and something of another table alone mends nothing.
    world.now += 2 * RETRY_S_MIN
    world.stream.records = [record for record in world.stream.records[:-2] if record["topic"] == contract.TOPIC]
    world.stream.insert(of_type("int", "integer", "other"), (8, 8))
    world.run()
    assert world.paused.numbers() == told
    world.stream.insert(of_type("boolean", "boolean"), (2, False))
    world.run()
    assert world.paused.numbers() == {"paused": {}, "tables_held": 0}


def test_a_table_that_was_just_paused_does_not_wait_for_one_that_is_tried_seldom():
    now = [0.0]
    paused, topics = PausedTables(True, lambda: now[0]), (contract.TOPIC, OTHER)
    for _ in range(6):
        assert paused.take(CdcError(SCHEMA_REFUSED, "no", where={"topic": OTHER}))
        now[0] += RETRY_S_MAX
        assert OTHER in paused.reading(topics)
    assert paused.take(CdcError(SCHEMA_REFUSED, "no", where={"topic": OTHER}))
    assert paused.take(CdcError(SCHEMA_REFUSED, "no", where={"topic": contract.TOPIC}))
    now[0] += RETRY_S_MIN - 1
    assert not paused.due()
    now[0] += 1
    assert paused.due()
    assert paused.reading(topics) == [contract.TOPIC]
    assert not paused.due()
    now[0] += RETRY_S_MAX - RETRY_S_MIN
    assert paused.reading(topics) == list(topics)


def test_a_table_whose_files_are_whole_again_is_told_so_without_rows_to_come():
    now, topics, broken = [0.0], (contract.TOPIC, OTHER), [OTHER]
    paused = PausedTables(True, lambda: now[0])

    def claim(wanted):
        if OTHER in wanted and broken:
            raise CdcError(TARGET_BROKEN, "no", where={"topic": OTHER})

    paused.claim(claim, paused.reading(topics))
    now[0] += RETRY_S_MIN
    paused.reading(topics)
    assert paused.numbers()["tables_held"] == 1
    broken.clear()
    paused.claim(claim, topics)
    assert paused.numbers()["tables_held"] == 0


def test_a_table_that_was_paused_for_longer_than_kafka_keeps_its_records_stays_behind_alone():
    now, topics, lost = [0.0], {contract.TOPIC: 1, OTHER: 3}, []
    paused = PausedTables(True, lambda: now[0])

    def check(partitions):
        for topic in lost:
            if topic in partitions:
                raise CdcError(DATA_LOST, "the topic begins at 9", where={"topic": topic, "partition": 0})

    assert paused.checked(check, topics) == topics
    assert paused.take(CdcError(SCHEMA_REFUSED, "no", where={"topic": OTHER}))
    lost.append(OTHER)
    for tries in (1, 2):
        now[0] += RETRY_S_MIN * tries
        assert paused.reading(tuple(topics)) == list(topics)
        assert paused.checked(check, topics) == {contract.TOPIC: 1}
        assert paused.numbers() == {"paused": {OTHER: "the topic begins at 9"}, "tables_held": 1}
    # What is lost of a table that was read all along is the task's.
    lost.append(contract.TOPIC)
    with pytest.raises(CdcError) as caught:
        paused.checked(check, topics)
    assert (caught.value.code, caught.value.where["topic"]) == (DATA_LOST, contract.TOPIC)
    # Offsets that somebody sets make it whole.
    lost.clear()
    now[0] += RETRY_S_MAX
    paused.reading(tuple(topics))
    assert paused.checked(check, topics) == topics
    assert paused.numbers()["tables_held"] == 0

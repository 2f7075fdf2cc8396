"""A table that a schema change stops stands still alone, and goes on from where it stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.connectors.spark.errors import SCHEMA_REFUSED, TARGET_BROKEN
from cdcworker.connectors.spark.manifests import Manifests, schema_text
from cdcworker.connectors.spark.parquet import ParquetWriter
from cdcworker.connectors.spark.paused import RETRY_S_MIN, PausedTables
from cdcworker.schemas.errors import CdcError

from . import warehouse_contract as contract
from .warehouse_contract import ID, column, support, table

OTHER = "shop.public.other"


def of_type(type_, source_type, name="orders"):
    return table(ID, column("n", type_, source_type), name=name)


class World:
    """The driver's part: batches from the ledger on, through what pauses tables."""

    def __init__(self, root, enabled=True):
        self.now = 0.0
        self.stream = support.Stream(1)
        self.paused = PausedTables(enabled, lambda: self.now)
        self.writer = ParquetWriter(str(root), "sink")
        self.writer.fence((1, 0))

    def run(self):
        topics = self.paused.reading([contract.TOPIC, OTHER])
        self.writer.claim(topics)
        records = [record for record in self.stream.records if record["topic"] in topics]
        batch = self.stream.assembler().build(support.arrow(records), self.writer.ledger(), 1)
        return self.paused.apply(self.writer.apply, batch)


def refused(world):
    world.stream.insert(of_type("boolean", "boolean"), (1, True))
    world.run()
    world.stream.insert(of_type("double", "double precision"), (1, 5.5), "u")
    world.stream.insert(of_type("int", "integer", "other"), (7, 7))
    world.run()


def test_the_others_go_on_and_its_offsets_stand_still(tmp_path):
    world = World(tmp_path)
    refused(world)
    assert contract.rows(world.writer, "id", "n", topic=OTHER) == [(7, 7)]
    assert contract.rows(world.writer, "id", "n") == [(1, True)]
    assert world.paused.topics == {contract.TOPIC}
    assert world.writer.ledger()[contract.TOPIC, 0] == world.stream.records[0]["offset"] + 1
    world.stream.insert(of_type("int", "integer", "other"), (8, 8))
    world.run()
    assert contract.rows(world.writer, "id", "n", topic=OTHER) == [(7, 7), (8, 8)]


def test_once_its_target_fits_it_goes_on_from_where_it_stopped(tmp_path):
    world = World(tmp_path)
    refused(world)
    assert not world.paused.due()
    # A person takes the column out of the table's state, which makes room for one of the new type.
    manifests = Manifests(world.writer._folder(contract.TOPIC))
    state = manifests.newest()
    manifests.commit(replace(state, schema=schema_text(state.arrow.remove(state.arrow.get_field_index("n")))))
    world.now = RETRY_S_MIN
    assert world.paused.due()
    world.run()
    assert world.paused.topics == frozenset()
    assert contract.rows(world.writer, "id", "n") == [(1, 5.5)]


def test_a_table_that_stays_refused_is_tried_less_and_less(tmp_path):
    world = World(tmp_path)
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
        refused(World(tmp_path, enabled=False))
    assert caught.value.code == "spark.schema_refused"
    assert caught.value.where["topic"] == contract.TOPIC


def test_how_many_tables_stand_still_is_told_in_numbers(tmp_path):
    world = World(tmp_path)
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

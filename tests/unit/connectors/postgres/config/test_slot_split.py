"""Several slots of one connector: names, shares of tables, and what cannot be split."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from cdcworker.connectors.capture.config.table_share import TableShare
from cdcworker.connectors.postgres.config.settings import CONFIG_DEF, parse
from cdcworker.connectors.postgres.doctor import slots as doctor_slots
from cdcworker.connectors.postgres.source.connector import PostgresSource
from cdcworker.connectors.postgres.source.heartbeat_action import make_heartbeat
from cdcworker.schemas.errors import CdcError

from ..test_rules import CONFIG

SLOTS_FREE, SLOT_SPLIT = (
    next(check for check in doctor_slots.CHECKS if check.name == name) for name in ("decoding.slots_free", "slot.split")
)

SPLIT = {**CONFIG, "slot.count": "3", "tasks.max": "4"}
TABLES = [f"t{n}" for n in range(60)]


def errors(config: dict[str, str]) -> list[str]:
    return [value.name for value in CONFIG_DEF.validate(config) if value.errors]


def test_every_table_is_one_tasks_and_stays_it():
    parsed = parse(SPLIT)
    shares = [[t for t in TABLES if parsed.of_task(n).filters.table("public", t)] for n in range(3)]
    assert sorted(table for share in shares for table in share) == sorted(TABLES)
    assert all(share for share in shares)
    # Written down: another rule would give tables to other slots.
    assert [number for number in range(3) if TableShare(number, 3).has("public.orders")] == [0]
    assert all(parsed.filters.table("public", table) for table in TABLES)


def test_each_has_a_slot_and_a_publication_of_its_own_whose_names_hold_the_count():
    parsed = parse(SPLIT)
    assert [parsed.of_task(n).slot for n in range(3)] == [f"debezium_{n}of3" for n in range(3)]
    assert parsed.of_task(1).publication == "dbz_publication_1of3"
    given = parse({**SPLIT, "publication.autocreate.mode": "disabled"}).of_task(1)
    assert (given.publication, given.slot) == ("dbz_publication", "debezium_1of3")
    assert parse(CONFIG).of_task(0) is not None
    assert parse({**CONFIG, "tasks.max": "8"}).of_task(0).slot == "debezium"


def test_there_are_as_many_tasks_as_slots_and_no_more():
    assert len(PostgresSource(SPLIT).split(4)) == 3
    assert len(PostgresSource({**CONFIG, "tasks.max": "8"}).split(8)) == 1


@pytest.mark.parametrize(
    ("more", "status"),
    [({}, "ok"), ({"tasks.max": "4"}, "note"), ({"tasks.max": "4", "slot.count": "4"}, "ok"), (SPLIT, "note")],
)
def test_more_tasks_than_slots_are_told_of(monkeypatch, more, status):
    monkeypatch.setattr(doctor_slots.slots, "of_other_splits", lambda *_: [])
    examined = SimpleNamespace(settings=parse({**CONFIG, **more}), connection=None)
    (result,) = SLOT_SPLIT.run(examined)
    assert (result.status, result.key) == (status, "slot.count" if status == "note" else "")


def test_one_of_them_beats():
    config = {**SPLIT, "heartbeat.interval.ms": "5"}
    assert [make_heartbeat(parse(config).of_task(n)).due(1.0) for n in range(3)] == [True, False, False]


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ({}, []),
        ({"tasks.max": "2"}, ["slot.count"]),
        ({"slot.count": "33", "tasks.max": "50"}, ["slot.count"]),
        ({"slot.name": "s" * 60}, ["slot.name"]),
        ({"provide.transaction.metadata": "true"}, ["provide.transaction.metadata"]),
        ({"signal.data.collection": "public.signals"}, ["signal.data.collection"]),
    ],
)
def test_what_cannot_be_split_is_refused(more, wrong):
    assert errors({**SPLIT, **more}) == wrong
    if wrong:
        with pytest.raises(CdcError):
            parse({**SPLIT, **more})


@pytest.mark.parametrize(
    ("used", "lacking", "status", "says"),
    [
        (7, 3, "ok", ""),
        (8, 3, "error", "2 of 10 replication slots are free; 3 are needed"),
        (10, 3, "error", "all 10"),
        (8, 2, "ok", ""),
        (10, 0, "note", "this connector has its slot"),
    ],
)
def test_there_must_be_room_for_every_slot_that_is_to_be_made(used, lacking, status, says):
    examined = SimpleNamespace(row=lambda _statement: (used, 10), lacking=lacking, flavour="self-managed")
    (result,) = SLOTS_FREE.run(examined)
    assert (result.status, says in result.message) == (status, True)

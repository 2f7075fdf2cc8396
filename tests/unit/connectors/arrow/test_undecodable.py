"""Records that cannot be decoded: which are set aside, and what becomes of the others."""

from __future__ import annotations

import pytest
from cdcworker.connectors.arrow.assembler import Assembler
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.schemas.errors import CdcError

from tests import change_streams
from tests.change_streams import NARROW


def stream_of(count):
    stream = change_streams.Stream(1)
    for number in range(count):
        stream.insert(NARROW, (number, 1, "a", "b"))
    return stream


def build(stream, tolerant=True, log=False):
    assembler = Assembler(EnvelopeSchemas(stream.schemas, wait_s_max=0), log, tolerant)
    return assembler.build(change_streams.arrow(stream.records), {}, 1)


POISON = {
    "no frame": lambda record: record.update(value=b"\x01\x02"),
    "json": lambda record: record.update(value=b'{"a": 1}'),
    "cut off": lambda record: record.update(value=record["value"][:-3]),
    "too long": lambda record: record.update(value=record["value"] + b"\x00"),
    "key without a frame": lambda record: record.update(key=b"{}"),
    "other key without a frame": lambda record: record.update(headers=[{"key": "__debezium.oldkey", "value": b"x"}]),
    "no key": lambda record: record.update(key=None),
    "header": lambda record: record.update(headers=[{"key": "cdc.unchanged", "value": b"99"}]),
}


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("what", POISON)
def test_a_poisoned_record_is_set_aside_with_its_place_and_the_others_go_on(what, log):
    stream = stream_of(6)
    POISON[what](stream.records[3])
    if log and "key" in what:
        # A log does not look at keys.
        return
    batch = build(stream, log=log)
    (letter,) = batch.dead
    assert (letter.topic, letter.partition, letter.offset) == ("shop.public.orders", 0, stream.records[3]["offset"])
    assert letter.code in ("spark.undecodable", "spark.wire_format")
    assert (letter.key, letter.value) == (stream.records[3]["key"], stream.records[3]["value"])
    assert sorted(batch.tables[0].upserts["id"].to_pylist()) == [0, 1, 2, 4, 5]
    assert batch.offsets["shop.public.orders", 0][1] == stream.records[-1]["offset"] + 1


def test_without_tolerance_the_first_one_halts():
    stream = stream_of(6)
    POISON["cut off"](stream.records[3])
    with pytest.raises(CdcError) as caught:
        build(stream, tolerant=False)
    assert caught.value.where["offset"] == stream.records[3]["offset"]


def test_many_are_found_in_one_pass_and_nothing_but_them_is_a_batch_too():
    stream = stream_of(400)
    for record in stream.records[::2]:
        POISON["cut off"](record)
    batch = build(stream)
    assert len(batch.dead) == 200
    assert batch.tables[0].upserts.num_rows == 200
    for record in stream.records:
        POISON["no frame"](record)
    batch = build(stream)
    assert (len(batch.dead), list(batch.tables)) == (400, [])
    assert batch.offsets["shop.public.orders", 0][1] == stream.records[-1]["offset"] + 1


def test_an_unknown_schema_is_never_skipped():
    stream = stream_of(2)
    stream.records[1]["value"] = b"\x00\x00\x00\x00\x09" + stream.records[1]["value"][5:]
    with pytest.raises(CdcError) as caught:
        build(stream)
    assert caught.value.code == "spark.unknown_schema"

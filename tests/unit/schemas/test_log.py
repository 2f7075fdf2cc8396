import dataclasses
import json
import random

import pytest
from cdcworker.schemas import avro
from cdcworker.schemas.change import Column, Position
from cdcworker.schemas.envelope import value_schema
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import RegistrationMeta, SchemaLog, SchemaLogRecord, encode_record, schema_value
from cdcworker.schemas.untrusted.refusals import Refusals

VALUE = "shop.public.orders-value"


def meta(lsn, table_id=16401):
    return RegistrationMeta(table_id, ("public", "orders"), Position(lsn, 0, 0))


@pytest.fixture
def shapes(kit):
    """Three shapes of one table: a column more each."""
    wider = dataclasses.replace(kit.ORDERS, columns=(*kit.ORDERS.columns, Column("e", "int", column_id=6)))
    widest = dataclasses.replace(wider, columns=(*wider.columns, Column("f", "int", column_id=7)))
    return [value_schema("shop", table) for table in (kit.ORDERS, wider, widest)]


class Bench:
    """A log and the records that were appended to it."""

    def __init__(self):
        self.log = SchemaLog()
        self.records = []

    def register(self, schema, lsn, subject=VALUE, table_id=16401):
        planned = self.log.plan_registration(subject, schema, meta(lsn, table_id))
        for record in planned.records:
            self.log.apply(*record)
        self.records += planned.records
        return planned

    def uses(self):
        return [(use.version, use.change, use.effective[0]) for use in self.log.versions(VALUE)]


@pytest.fixture
def bench():
    return Bench()


def test_a_new_schema_is_two_records_and_a_known_one_none(bench, shapes):
    planned = bench.register(shapes[0], 100)
    fp = avro.fingerprint(shapes[0])
    assert planned.id == avro.schema_id(fp)
    assert planned.records == (
        SchemaLogRecord(f"schema/{fp}", schema_value(planned.id, fp, avro.canonical(shapes[0]))),
        SchemaLogRecord(
            f"use/{VALUE}/1",
            {
                "sha": fp,
                "change": "add",
                "table": {"id": 16401, "path": ["public", "orders"]},
                "effective": {"commit_lsn": 100, "tx_index": 0},
            },
        ),
    )
    assert bench.register(shapes[0], 150) == (planned.id, ())


def test_the_same_schema_has_the_same_bytes_from_any_worker(shapes):
    encoded = [
        encode_record(SchemaLog().plan_registration(VALUE, shape, meta(5)).records[0]) for shape in shapes[:1] * 2
    ]
    assert encoded[0] == encoded[1]
    reordered = json.loads(json.dumps(shapes[0], sort_keys=True))
    assert encode_record(SchemaLog().plan_registration(VALUE, reordered, meta(5)).records[0]) == encoded[0]


def test_versions_carry_their_class_and_position(bench, shapes):
    for lsn, shape in zip((100, 200, 300), shapes, strict=True):
        bench.register(shape, lsn)
    assert bench.uses() == [(1, "add", 100), (2, "add", 200), (3, "add", 300)]
    bench.register(shapes[0], 400)
    assert bench.uses()[-1] == (4, "drop", 400)
    assert bench.log.version_of(VALUE, avro.fingerprint(shapes[0])) == 4


def test_the_version_in_force_is_found_by_position(bench, shapes):
    for lsn, shape in zip((100, 200), shapes, strict=False):
        bench.register(shape, lsn)
    in_force = [bench.log.in_force(VALUE, lsn) for lsn in (99, 100, 199, 200, 10_000)]
    assert [use.version if use else None for use in in_force] == [None, 1, 1, 2, 2]
    assert bench.log.in_force("unknown-value", 5) is None


def test_a_replay_adds_no_versions(bench, shapes):
    history = list(zip((100, 200, 300), (shapes[0], shapes[1], shapes[0]), strict=True))
    for lsn, shape in history:
        bench.register(shape, lsn)
    before = bench.uses()
    for lsn, shape in history:
        assert bench.register(shape, lsn).records == ()
        assert bench.register(shape, lsn + 50).records == ()
    assert bench.uses() == before


def test_a_replay_that_meets_a_known_shape_earlier_than_before_adds_no_version(bench, shapes):
    for lsn, shape in zip((100, 200, 300), shapes, strict=True):
        bench.register(shape, lsn)
    assert bench.register(shapes[2], 250).records == ()
    assert bench.register(shapes[1], 150).records == ()


def test_a_recreated_table_gets_a_version_of_its_own(bench, shapes):
    bench.register(shapes[0], 100)
    bench.register(shapes[0], 200, table_id=999)
    assert bench.uses() == [(1, "add", 100), (2, "identical", 200)]
    assert bench.register(shapes[0], 300, table_id=999).records == ()


def test_an_id_that_is_taken_is_probed_past_and_recorded(bench, shapes):
    fp = avro.fingerprint(shapes[0])
    natural = avro.schema_id(fp)
    text = avro.canonical("int")
    bench.log.apply(f"schema/{avro.fingerprint('int')}", schema_value(natural, avro.fingerprint("int"), text))
    planned = bench.register(shapes[0], 100)
    assert planned.id == natural + 1
    assert [record.key.partition("/")[0] for record in planned.records] == ["schema", "alias", "use"]
    assert bench.log.by_id(natural).schema == "int"
    assert bench.register(shapes[0], 100, "other-value").id == natural + 1


def test_two_schemas_under_one_id_are_an_error_and_never_a_guess(caplog):
    log = SchemaLog()
    for schema in ("int", "long"):
        log.apply(
            f"schema/{avro.fingerprint(schema)}", schema_value(7, avro.fingerprint(schema), avro.canonical(schema))
        )
    with pytest.raises(CdcError) as caught:
        log.by_id(7)
    assert caught.value.code == "schema.id_conflict"
    assert "schema_id_conflict" in caplog.text


def test_the_fold_is_the_same_after_compaction_and_in_any_order(bench, shapes):
    for lsn, shape in zip((100, 200, 300, 400), [*shapes, shapes[0]], strict=True):
        bench.register(shape, lsn)
    records = [*bench.records, *bench.records]
    random.Random(4).shuffle(records)
    other = SchemaLog((record.key, record.value) for record in records)
    assert other.subjects() == bench.log.subjects()
    assert other.versions(VALUE) == bench.log.versions(VALUE)
    assert {schema.id for schema in other.schemas()} == {schema.id for schema in bench.log.schemas()}


def nested(depth):
    return "int" if depth == 0 else {"type": "array", "items": nested(depth - 1)}


def hostile(text, id=5):
    fp = avro.fingerprint_of_text(text)
    return f"schema/{fp}", {"id": id, "fp": fp, "type": "AVRO", "schema": text, "references": []}


@pytest.mark.parametrize(
    "record",
    [
        ("schema/" + "0" * 64, {"id": 5, "schema": '"int"'}),
        hostile('"' + " " * (1 << 20) + '"'),
        hostile('"int"', id=0),
        hostile('"int"', id=-1),
        hostile('"int"', id=1 << 31),
        hostile('"int"', id="5"),
        ("schema/x", {}),
        ("schema/x", {"id": 5, "schema": None}),
        ("use/s/x", {"sha": "1"}),
        ("use/s/0", {"sha": "1"}),
        ("use/s/1", {"sha": "1", "effective": {"commit_lsn": "x"}}),
        ("use//1", {"sha": "1"}),
        ("config/s", {}),
    ],
)
def test_a_record_that_cannot_be_trusted_is_set_aside_with_a_reason(record, caplog, monkeypatch):
    refusals = Refusals()
    monkeypatch.setattr("cdcworker.schemas.log.REFUSALS", refusals)
    log = SchemaLog([record])
    assert list(log.rejected) == [record[0]]
    assert log.by_id(5) is None
    assert log.subjects() == []
    assert refusals.counts() == {"schemas": 1}
    assert "record refused log=schemas" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(nested(40)),
        json.dumps({"type": "record", "name": "R", "fields": [{"name": f"f{i}", "type": "int"} for i in range(2001)]}),
        '{"type":"array","items":' * 20_000,
        "[",
        '{"a":1}',
    ],
    ids=["deep", "wide", "very deep", "no JSON", "no schema"],
)
def test_a_hostile_schema_is_never_handed_out(text):
    log = SchemaLog([hostile(text)])
    for read in (lambda: log.by_id(5), lambda: log.by_fingerprint(avro.fingerprint_of_text(text))):
        with pytest.raises(CdcError) as caught:
            read()
        assert caught.value.code == "schema.invalid"


def test_kinds_that_are_not_known_and_tombstones_are_left_alone(bench, shapes):
    bench.register(shapes[0], 100)
    before = bench.log.versions(VALUE)
    for key, value in [("new-kind/x", {"v": 9}), ("nonsense", None), (bench.records[0].key, None)]:
        bench.log.apply(key, value)
    assert bench.log.versions(VALUE) == before
    assert bench.log.rejected == {}
    assert len(bench.log.schemas()) == 1


def test_fields_of_newer_versions_are_ignored(shapes):
    bench = Bench()
    bench.register(shapes[0], 100)
    newer = SchemaLog((key, {**value, "new": [1]}) for key, value in bench.records)
    assert newer.versions(VALUE) == bench.log.versions(VALUE)


def test_levels_are_set_and_unset():
    log = SchemaLog()
    for subject in ("", "s"):
        log.apply(*log.plan_level(subject, "FULL"))
        assert log.level(subject) == "FULL"
        log.apply(*log.plan_level(subject, None))
        assert log.level(subject) is None


def test_a_guid_finds_its_schema(bench, shapes):
    bench.register(shapes[0], 1)
    stored = bench.log.schemas()[0]
    assert bench.log.by_guid(stored.guid.upper()) is stored
    assert bench.log.by_guid("none") is None


def test_a_subject_is_owned_once_a_task_has_given_it_a_version(bench, shapes):
    bench.log.apply("use/free/1", {"sha": avro.fingerprint("int"), "change": "add"})
    bench.register(shapes[0], 1)
    assert bench.log.owned(VALUE)
    assert not bench.log.owned("free")
    assert not bench.log.owned("unknown")

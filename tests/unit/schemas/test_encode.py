import dataclasses
import io
import math
from decimal import Decimal

import fastavro
import pytest
from cdcworker.connectors.postgres.types.mapping import VARIABLE_SCALE_DECIMAL
from cdcworker.schemas import avro
from cdcworker.schemas.change import NO_DEFAULT, Change, Column, Position, Table
from cdcworker.schemas.decode import RecordDecoder, decode
from cdcworker.schemas.envelope import MESSAGE_PATH, bare_key_schema, change_value, key_schema, value_schema
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import Registration, RegistrationMeta, SchemaLog, register_in_memory
from cdcworker.schemas.placeholders import UNAVAILABLE, unavailable_value, zero_value
from hypothesis import given, settings
from hypothesis import strategies as st


def by_fastavro(schema, value):
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(avro.without_logical_types(schema)), value)
    return buffer.getvalue()


# Every column type, with its values

INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
POINT = {
    "type": "record",
    "name": "Point",
    "namespace": "io.debezium.data.geometry",
    "fields": [{"name": "x", "type": "double"}, {"name": "wkb", "type": ["null", "bytes"], "default": None}],
}
DOUBLE = st.floats(allow_nan=False)
TYPES = [
    ("boolean", st.booleans()),
    ("int", INT),
    ({"type": "int", "connect.type": "int16"}, INT),
    ("long", LONG),
    (
        {"type": "long", "logicalType": "local-timestamp-micros", "connect.name": "io.debezium.time.MicroTimestamp"},
        LONG,
    ),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", DOUBLE),
    ("bytes", st.binary(max_size=20)),
    ("string", st.text(max_size=20)),
    ({"type": "string", "logicalType": "uuid", "connect.name": "io.debezium.data.Uuid"}, st.uuids().map(str)),
    ({"type": "array", "items": ["null", "int"]}, st.lists(st.none() | INT, max_size=4)),
    ({"type": "array", "items": "string"}, st.lists(st.text(max_size=5), max_size=4)),
    (
        {"type": "map", "values": ["null", "string"]},
        st.dictionaries(st.text(max_size=3), st.none() | st.text(max_size=3)),
    ),
    (POINT, st.fixed_dictionaries({"x": DOUBLE, "wkb": st.none() | st.binary(max_size=5)})),
    ({"type": "enum", "name": "Mood", "symbols": ["SAD", "OK"]}, st.sampled_from(["SAD", "OK"])),
    ({"type": "fixed", "name": "Four", "size": 4}, st.binary(min_size=4, max_size=4)),
    (["int", "string"], INT | st.text(max_size=5)),
]


@st.composite
def tables_with_rows(draw):
    picks = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=8))
    columns, values = [], []
    for index, (kind, strategy) in enumerate(picks):
        optional = draw(st.booleans()) and not isinstance(kind, list)
        scalar = kind in ("int", "long", "string", "bytes", "boolean")
        default = draw(strategy) if scalar and draw(st.booleans()) else NO_DEFAULT
        columns.append(Column(f"c {index}", kind, optional, default, index + 1, "type"))
        values.append(strategy if not optional else st.none() | strategy)
    key = draw(st.lists(st.sampled_from(range(len(columns))), unique=True, max_size=2))
    rows = st.tuples(*values)
    return columns, tuple(key), draw(rows), draw(rows)


@settings(max_examples=150, deadline=None)
@given(case=tables_with_rows(), op=st.sampled_from("crud"))
def test_the_bytes_are_those_of_fastavro_and_decode_to_the_change(kit, case, op):
    columns, key, before, after = case
    table = Table(("public", "things"), 1, tuple(columns), key, kit.SOURCE)
    change = kit.change(op, table, before=before if op in "ud" else None, after=after if op != "d" else None)
    log = SchemaLog()
    first = kit.encoder(log).encode([change])[0]

    schema, value = value_schema("shop", table), change_value(change, kit.CLOCK_NS)
    assert first.value[5:] == by_fastavro(schema, value)
    assert RecordDecoder(log).decode(first.value) == decode(schema, first.value[5:])
    assert log.by_id(avro.unframe(first.value)[0]).text == avro.canonical(schema)
    if not key:
        assert (first.key, first.hash) == (None, None)
        return
    row = before if op == "d" else after
    names = [field["name"] for field in key_schema("shop", table)["fields"]]
    body = by_fastavro(key_schema("shop", table), dict(zip(names, [row[i] for i in key], strict=True)))
    assert first.key[5:] == body
    assert first.hash == avro.murmur2(body) & 0x7FFFFFFF


@given(value=LONG | st.integers(-300, 300) | st.sampled_from([2**k * s for k in range(63) for s in (1, -1)]))
def test_every_long_is_written_as_fastavro_writes_it(value):
    from cdcworker.schemas.avro_binary import write_long

    assert write_long(value) == by_fastavro("long", value)


def test_infinities_and_nan_pass_through(kit):
    table = Table(("public", "f"), 1, (Column("d", "double"), Column("f", "float")), (), kit.SOURCE)
    for value in (math.inf, -math.inf, math.nan):
        log = SchemaLog()
        out = kit.encoder(log).encode([kit.change("c", table, after=(value, value))])
        after = RecordDecoder(log).decode(out[0].value)["after"]
        assert [repr(after["d"]), repr(after["f"])] == [repr(value)] * 2


# What a change becomes


def test_a_create_is_one_record_with_the_whole_envelope(kit):
    log = SchemaLog()
    [record] = kit.encoder(log).encode([kit.change("c", after=kit.ROW)])
    assert record.topic == "shop.public.orders"
    assert record.headers is None
    assert RecordDecoder(log).decode(record.key) == {"id": 7}
    assert RecordDecoder(log).decode(record.value) == {
        "before": None,
        "after": {"id": 7, "quantity": 3, "note": "gift", "price": b"\x04\xd2", "photo": b"\xff\xd8"},
        "source": kit.source(),
        "transaction": None,
        "op": "c",
        "ts_ms": 1_790_000_001_234,
        "ts_us": 1_790_000_001_234_567,
        "ts_ns": 1_790_000_001_234_567_890,
    }


def test_a_delete_is_followed_by_a_tombstone_of_the_same_key(kit):
    log = SchemaLog()
    change, tombstone = kit.encoder(log).encode([kit.change("d", before=(7, None, None, None, None))])
    assert RecordDecoder(log).decode(change.value)["op"] == "d"
    assert tombstone.value is None
    assert (tombstone.topic, tombstone.key, tombstone.hash) == (change.topic, change.key, change.hash)


def test_tombstones_can_be_turned_off(kit):
    assert len(kit.encoder(tombstones=False).encode([kit.change("d", before=kit.ROW)])) == 1


def test_a_table_without_a_key_has_neither_keys_nor_tombstones(kit):
    log = SchemaLog()
    table = dataclasses.replace(kit.ORDERS, key=())
    records = kit.encoder(log).encode([kit.change("d", table, before=kit.ROW), kit.change("c", table, after=kit.ROW)])
    assert [(record.key, record.hash) for record in records] == [(None, None)] * 2
    assert log.subjects() == ["shop.public.orders-value"]


def test_a_key_change_is_delete_tombstone_create_with_both_keys_in_headers(kit):
    log = SchemaLog()
    old, new = kit.ROW, (8, *kit.ROW[1:])
    changes = [
        kit.change("d", before=old, other_key=(8,)),
        kit.change("c", after=new, other_key=(7,)),
    ]
    deleted, tombstone, created = kit.encoder(log).encode(changes)
    assert [deleted.headers, created.headers] == [
        [("__debezium.newkey", created.key)],
        [("__debezium.oldkey", deleted.key)],
    ]
    assert (tombstone.key, tombstone.value) == (deleted.key, None)
    assert RecordDecoder(log).decode(created.key) == {"id": 8}


def test_a_truncate_has_no_key_and_no_rows(kit):
    log = SchemaLog()
    [record] = kit.encoder(log).encode([kit.change("t")])
    value = RecordDecoder(log).decode(record.value)
    assert (record.key, record.hash) == (None, None)
    assert (value["op"], value["before"], value["after"]) == ("t", None, None)


def test_a_logical_message_goes_to_the_message_topic_keyed_by_its_prefix(kit):
    log = SchemaLog()
    columns = (Column("prefix", "string"), Column("content", "bytes"))
    table = Table(MESSAGE_PATH, 0, columns, (0,), kit.SOURCE)
    [record] = kit.encoder(log).encode([kit.change("m", table, after=("audit", b"\0x"))])
    assert record.topic == "shop.message"
    assert RecordDecoder(log).decode(record.key) == {"prefix": "audit"}
    value = RecordDecoder(log).decode(record.value)
    assert value == change_value(kit.change("m", table, after=("audit", b"\0x")), kit.CLOCK_NS)
    assert value["message"] == {"prefix": "audit", "content": b"\0x"}
    stored = log.by_id(avro.unframe(record.value)[0])
    assert stored.schema["name"] == "io.debezium.connector.postgresql.MessageValue"


def test_the_transaction_block_is_written_when_it_is_given(kit):
    log = SchemaLog()
    block = {"id": "771:25000000000", "total_order": 1, "data_collection_order": 1}
    [record] = kit.encoder(log).encode([kit.change("c", after=kit.ROW, transaction=block)])
    assert RecordDecoder(log).decode(record.value)["transaction"] == block


def test_source_fields_left_out_take_their_defaults_and_changed_ones_are_seen(kit):
    log = SchemaLog()
    changes = [kit.change("c", after=kit.ROW, index=index) for index in range(3)]
    del changes[0].source["origin"], changes[0].source["snapshot"]
    changes[1].source["txId"] = 772
    changes[2].source["snapshot"] = "last"
    records = kit.encoder(log).encode(changes)
    sources = [RecordDecoder(log).decode(record.value)["source"] for record in records]
    assert sources[0] == {**kit.source(0), "snapshot": "false"}
    assert sources[1:] == [kit.source(1, txId=772), kit.source(2, snapshot="last")]


# Values that are not there


def test_unchanged_values_are_listed_in_a_header_and_carry_the_placeholder_where_the_type_has_one(kit):
    log = SchemaLog()
    change = kit.change("u", after=(7, 3, None, None, None), unchanged=(2, 3, 4))
    [record] = kit.encoder(log).encode([change])
    assert record.headers == [("cdc.unchanged", b"2,3,4")]
    after = RecordDecoder(log).decode(record.value)["after"]
    assert after == {"id": 7, "quantity": 3, "note": UNAVAILABLE, "price": None, "photo": UNAVAILABLE.encode()}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({"type": "array", "items": ["null", "string"]}, [UNAVAILABLE]),
        ({"type": "array", "items": ["null", "long"]}, list(UNAVAILABLE.encode())),
        (
            {"type": "array", "items": {"type": "string", "connect.name": "io.debezium.data.Uuid"}},
            ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
        ),
        ({"type": "map", "values": ["null", "string"]}, {UNAVAILABLE: UNAVAILABLE}),
        ({"type": "array", "items": ["null", "double"]}, None),
    ],
)
def test_unchanged_lists_and_maps_have_debeziums_placeholders(kind, value):
    assert unavailable_value(Column("a", kind), UNAVAILABLE) == value


def test_an_array_with_a_shape_of_its_own_names_it_in_a_header(kit):
    class Shaped(list):
        bounds = "[0:1]"

    log = SchemaLog()
    columns = (Column("id", "int"), Column("a", {"type": "array", "items": "int"}))
    table = Table(("public", "w"), 1, columns, (0,), kit.SOURCE)
    rows = (1, Shaped([1, 2])), (1, [1])
    changes = [kit.change("u", table, before=rows[i], after=rows[j]) for i, j in ((0, 1), (1, 0), (1, 1))]
    records = kit.encoder(log).encode(changes)
    assert [record.headers for record in records] == [
        [("cdc.bounds.before", b'{"1":"[0:1]"}')],
        [("cdc.bounds", b'{"1":"[0:1]"}')],
        None,
    ]
    assert RecordDecoder(log).decode(records[1].value)["after"] == {"id": 1, "a": [1, 2]}


def test_an_unchanged_required_value_without_a_placeholder_is_its_types_zero(kit):
    log = SchemaLog()
    columns = (
        Column("a", {"type": "array", "items": "double"}, optional=False),
        Column("d", kit.DECIMAL, optional=False),
        Column("n", "int", optional=False, default=5),
    )
    table = Table(("public", "w"), 1, columns, (), kit.SOURCE)
    [record] = kit.encoder(log).encode([kit.change("u", table, after=(None, None, None), unchanged=(0, 1, 2))])
    assert RecordDecoder(log).decode(record.value)["after"] == {"a": [], "d": b"\0", "n": 5}


def test_a_key_only_image_fills_required_columns_with_zeroes(kit):
    log = SchemaLog()
    columns = tuple(dataclasses.replace(column, optional=False) for column in kit.ORDERS.columns)
    table = dataclasses.replace(kit.ORDERS, columns=columns)
    change = kit.change("d", table, before=(7, None, None, None, None))
    before = RecordDecoder(log).decode(kit.encoder(log).encode([change])[0].value)["before"]
    assert before == {"id": 7, "quantity": 0, "note": "", "price": b"\0", "photo": b""}


def test_the_zero_of_a_decimal_is_a_number_in_every_form():
    for kind in (VARIABLE_SCALE_DECIMAL, {"type": "fixed", "name": "f", "size": 3, "logicalType": "decimal"}):
        zero = zero_value(Column("n", kind, optional=False))
        assert zero in ({"scale": 0, "value": b"\0"}, b"\0\0\0")


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ((7, 2**31, None, None, None), "quantity"),
        ((2**63, None, None, None, None), "id"),
        ((None, None, None, None, None), "id"),
        ((7, None, 5, None, None), "note"),
        ((7, None, None, "secret", None), "price"),
    ],
)
def test_a_value_that_does_not_fit_names_its_column_and_never_its_value(kit, row, column):
    with pytest.raises(CdcError) as caught:
        kit.encoder().encode([kit.change("c", after=row)])
    assert caught.value.code == "schema.value_rejected"
    assert caught.value.where["column"] == column
    assert "secret" not in str(caught.value)
    assert str(2**31) not in str(caught.value)


def test_a_row_of_another_length_is_refused(kit):
    with pytest.raises(CdcError, match="4 values for 5 columns"):
        kit.encoder().encode([kit.change("c", after=kit.ROW[:4])])


@pytest.mark.parametrize("kind", ["boolean", {"type": "array", "items": "int"}, {"type": "map", "values": "int"}])
def test_a_missing_required_value_is_never_taken_for_zero_in_after(kit, kind):
    table = Table(("public", "w"), 1, (Column("x", kind, optional=False),), (), kit.SOURCE)
    with pytest.raises(CdcError, match="does not fit"):
        kit.encoder().encode([kit.change("c", table, after=(None,))])


# Registration


class Registry:
    def __init__(self):
        self.calls = []
        self.fail = False

    def __call__(self, registrations):
        if self.fail:
            raise CdcError("internal.unexpected", "no log")
        self.calls.append([(wanted.subject, wanted.meta.position.event) for wanted in registrations])
        return [avro.schema_id(wanted.fingerprint) for wanted in registrations]


@pytest.fixture
def registry():
    return Registry()


@pytest.fixture
def wider(kit):
    return dataclasses.replace(kit.ORDERS, columns=(*kit.ORDERS.columns, Column("extra", "int", column_id=6)))


def encoder_of(registry):
    from cdcworker.schemas.encode import Encoder

    return Encoder("shop", registry)


def test_key_and_value_are_registered_together_once_per_shape(kit, registry):
    encoder = encoder_of(registry)
    again = dataclasses.replace(kit.ORDERS)
    encoder.encode([kit.change("c", after=kit.ROW, index=4), kit.change("c", after=kit.ROW, index=5)])
    encoder.encode([kit.change("c", again, after=kit.ROW, index=6)])
    assert registry.calls == [[("shop.public.orders-key", 4), ("shop.public.orders-value", 4)]]


def test_a_schema_change_in_a_batch_is_registered_before_its_first_record(kit, registry, wider):
    encoder = encoder_of(registry)
    records = encoder.encode(
        [kit.change("c", after=kit.ROW, index=0), kit.change("c", wider, after=(*kit.ROW, 1), index=1)]
    )
    assert [call[-1] for call in registry.calls] == [("shop.public.orders-value", 0), ("shop.public.orders-value", 1)]
    assert records[0].value[:5] != records[1].value[:5]
    assert records[0].key == records[1].key


def test_going_back_to_an_earlier_shape_registers_again_with_the_new_position(kit, registry, wider):
    encoder = encoder_of(registry)
    for index, table in enumerate([kit.ORDERS, wider, kit.ORDERS, kit.ORDERS]):
        row = kit.ROW if table is kit.ORDERS else (*kit.ROW, 1)
        encoder.encode([kit.change("c", table, after=row, index=index)])
    assert [call[0][1] for call in registry.calls] == [0, 1, 2]


def test_a_failed_registration_returns_nothing_and_is_tried_again(kit, registry):
    encoder = encoder_of(registry)
    registry.fail = True
    with pytest.raises(CdcError, match="no log"):
        encoder.encode([kit.change("c", after=kit.ROW)])
    registry.fail = False
    assert len(encoder.encode([kit.change("c", after=kit.ROW)])) == 1
    assert len(registry.calls) == 1


def test_plans_are_bounded_by_shapes_and_tables(kit, registry):
    encoder = encoder_of(registry)
    encoder.TABLES_SEEN_MAX = 10
    for size in range(1, 30):
        columns = tuple(Column(f"c{i}", "int") for i in range(size))
        table = Table(("public", "grows"), 1, columns, (), kit.SOURCE)
        encoder.encode([kit.change("c", table, after=(None,) * size)])
    assert len(encoder._seen) <= 10
    assert len(encoder._shapes["shop.public.grows"]) <= encoder.SHAPES_PER_TOPIC_MAX


NUMERIC_KEY = "numeric(12,2)"


def keyed_by_number(kit, number: bytes) -> Change:
    columns = (Column("id", kit.DECIMAL, False, source_type=NUMERIC_KEY),)
    table = Table(("public", "n"), 9, columns, (0,), kit.SOURCE)
    return dataclasses.replace(kit.change("c", after=(number,)), table=table)


def test_a_numeric_key_can_be_decoded_and_its_schema_is_the_values(kit):
    log = SchemaLog()
    (record,) = kit.encoder(log).encode([keyed_by_number(kit, b"\x04\xd2")])
    stored = log.by_id(int.from_bytes(record.key[1:5], "big"))
    key = fastavro.schemaless_reader(io.BytesIO(record.key[5:]), fastavro.parse_schema(stored.schema))
    assert key == {"id": Decimal("12.34")}
    assert stored.schema["fields"][0]["type"]["connect.name"] == "org.apache.kafka.connect.data.Decimal"


def test_a_topic_that_an_earlier_version_has_written_keeps_the_bytes_of_its_keys(kit):
    """Otherwise compaction would keep two records of one row."""
    change = keyed_by_number(kit, b"\x04\xd2")
    log = SchemaLog()
    former = bare_key_schema("shop", change.table)
    earlier = Registration("shop.public.n-key", former, RegistrationMeta(9, ("public", "n"), Position(1, 0, 0)))
    (number,) = register_in_memory(log)([earlier])
    (old,) = kit.encoder(log).encode([change])
    assert old.key[1:5] == number.to_bytes(4, "big")
    assert len(log.versions("shop.public.n-key")) == 1
    # Under another type the bytes of keys are others anyway.
    columns = (Column("id", {**kit.DECIMAL, "scale": 3}, False, source_type="numeric(12,3)"), Column("v", "int"))
    other = dataclasses.replace(change.table, columns=columns, key=(1,))
    (new,) = kit.encoder(log).encode([dataclasses.replace(change, table=other, after=(b"\0", 5))])
    assert log.by_id(int.from_bytes(new.key[1:5], "big")).schema["connect.name"] == "shop.public.n.Key"
    (fresh,) = kit.encoder(SchemaLog()).encode([change])
    assert (fresh.key[5:], fresh.hash) == (old.key[5:], old.hash)
    assert fresh.key != old.key

"""Columns of the key: what any of them holds stays apart in the key, and stock readers take key and row."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from cdcworker.connectors.arrow.envelope_schemas import BOUNDED
from cdcworker.connectors.capture.config.column_masks import ColumnMasks, MaskRule
from cdcworker.connectors.capture.config.filters import TableFilters
from cdcworker.connectors.capture.config.message_keys import MessageKeys
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlanner, build_plan
from cdcworker.connectors.postgres.errors import CAPTURE
from cdcworker.connectors.postgres.pgoutput import Relation, RelationColumn
from cdcworker.connectors.postgres.server.catalog import TypeNames
from cdcworker.connectors.postgres.types.bounded_values import bound_of
from cdcworker.connectors.postgres.types.mapping import HandlingModes, PgType
from cdcworker.schemas.change import Change, OutRecord, Position
from cdcworker.schemas.encode import Encoder
from cdcworker.schemas.envelope import former_key_schemas, key_schema
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.log import Registration, RegistrationMeta, SchemaLog, register_in_memory
from cdcworker.schemas.record_format import ConnectJsonFormat, FlatFormat, RecordFormat

from .. import messages as m
from ..oracle import needs_native
from ..stock_readers import means, read_avro, read_connect
from ..strict_avro import StrictParser
from ..type_matrix import (
    EXTREMES,
    MODES,
    TOO_FAR,
    TYPES,
    MatrixColumn,
    Stream,
    columns,
    extremes,
    placeholders,
    registered,
)

JSON = RecordFormat(ConnectJsonFormat(), ConnectJsonFormat())
FORMS = {"envelope": RecordFormat(), "flat": RecordFormat(flat=FlatFormat(deletes="rewrite")), "json": JSON}
DEFAULTS = pytest.mark.parametrize("mode", ["default", pytest.param("text", marks=pytest.mark.long)])


def deleted(stream: Stream) -> Change:
    [change] = stream.changes(placeholders(stream)[0])
    return change


def named(kind: Any) -> set[str]:
    """The Connect names of a type and of what it holds, where their values are bounded."""
    if not isinstance(kind, dict):
        return set().union(*map(named, kind)) if isinstance(kind, list) else set()
    inner = [kind.get("items"), *(field["type"] for field in kind.get("fields", ()))]
    return set().union(
        {str(kind["connect.name"])} if "connect.name" in kind and bound_of(kind) else (), *map(named, inner)
    )


def test_sinks_know_each_type_whose_values_are_bounded() -> None:
    kinds = [
        column.type
        for modes in MODES.values()
        for change in (deleted(Stream(columns(required=True), modes)),)
        for column in change.table.columns
    ]
    assert set().union(*map(named, kinds)) | {"io.debezium.time.Time"} == BOUNDED


def keyed(name: str, typmod: int = -1) -> list[MatrixColumn]:
    [oid] = [pg.oid for pg in TYPES.values() if pg.name == name]
    return [columns(required=True)[0], MatrixColumn("c", oid, typmod, True, in_key=True)]


def rows_of(value: dict[str, Any]) -> list[Any]:
    """Columns of a record in any form."""
    return [item for name, item in value.get("after", value).items() if name.startswith("c")]


@DEFAULTS
def test_stock_deserializers_read_key_and_row_of_extremes_of_every_type(mode: str) -> None:
    stream = Stream(columns(required=True, in_key=True), MODES[mode])
    for record in stream.records(*extremes(stream, exact=True)):
        assert record.key
        assert record.value
        assert read_avro(stream.schemas, record.value)["after"].keys() == read_avro(stream.schemas, record.key).keys()


@pytest.mark.parametrize(
    ("mode", "form"), [("default", "envelope"), ("connect", "envelope"), ("text", "json"), ("default", "flat")]
)
def test_the_row_of_a_key_has_values_of_what_its_types_mean(mode: str, form: str) -> None:
    bounded, plain = (Stream(columns(required=True, in_key=key), MODES[mode], FORMS[form]) for key in (True, False))
    for of_key, of_row in zip(
        bounded.values(*extremes(bounded, exact=True)), plain.values(*extremes(plain, exact=True)), strict=True
    ):
        if form == "json":
            found, other = read_connect(of_key), read_connect(of_row)
        else:
            found, other = read_avro(bounded.schemas, of_key), read_avro(plain.schemas, of_row)
        assert [repr(value) for value in rows_of(found)] == [repr(value) for value in rows_of(other)]


@pytest.mark.parametrize(
    ("name", "typmod"),
    [("timestamp", -1), ("time", -1), ("time", 3), ("date", -1), ("numeric", -1), ("_timestamp", -1)],
)
@pytest.mark.parametrize("form", FORMS)
def test_keys_stay_apart_in_the_key(name: str, typmod: int, form: str) -> None:
    stream = Stream(keyed(name, typmod), form=FORMS[form])
    texts = [text for text in EXTREMES[name.lstrip("_")] if not text.startswith(TOO_FAR)]
    made = [m.insert(1, b"1", (f"{{{text}}}" if name[0] == "_" else text).encode()) for text in texts]
    records = stream.records(*made)
    assert len({record.key for record in records}) == len(set(texts))


CHOSEN = "public.t:c"
APART = [
    *(("timestamp", -1), ("timestamp", 3), ("time", -1), ("time", 3), ("timetz", -1), ("date", -1)),
    *(("numeric", -1), ("numeric", (12 << 16 | 2) + 4), ("_timestamp", -1), ("_numeric", -1)),
]


def chosen(name: str, typmod: int, required: bool) -> list[MatrixColumn]:
    """A table with the key `id`, whose records have the column `c` as theirs."""
    first, column = keyed(name, typmod)
    return [first, replace(column, required=required, in_key=False)]


def held(name: str, typmod: int) -> list[str]:
    """Extremes that a column of this type holds: without digits of a second and infinities that its precision has not."""
    texts = [text for text in EXTREMES[name.lstrip("_")] if not text.startswith(TOO_FAR)]
    if typmod >= 0:
        texts = (
            ["NaN", "0.00", "-1.00"] if name == "numeric" else list(dict.fromkeys(text.split(".")[0] for text in texts))
        )
    return [f"{{{text}}}" for text in texts] if name[0] == "_" else texts


@pytest.mark.parametrize(("name", "typmod"), APART)
@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_keys_of_chosen_columns_stay_apart_and_the_row_is_as_of_any_column(
    name: str, typmod: int, required: bool, form: str
) -> None:
    """`message.key.columns` makes of a column a key as the server's own is one."""
    made, plain = (
        Stream(chosen(name, typmod, required), form=FORMS[form], chosen=key) for key in (CHOSEN, "public.other:c")
    )
    texts = held(name, typmod)
    rows = [m.insert(1, b"1", text.encode()) for text in texts]
    records = made.records(*rows)
    assert len({record.key for record in records}) == len(set(texts))
    read = read_connect if form == "json" else None
    for of_key, of_row in zip(made.values(*rows), plain.values(*rows), strict=True):
        found = read(of_key) if read else read_avro(made.schemas, of_key)
        other = read(of_row) if read else read_avro(plain.schemas, of_row)
        assert [repr(value) for value in rows_of(found)] == [repr(value) for value in rows_of(other)]


SCALED = {(8, 3): Decimal(100_000), (38, 0): Decimal(10**38), (12, 2): Decimal(10**10), (1000, 1000): Decimal(1)}
NAN_KEYS = pytest.mark.parametrize(("precision", "scale"), SCALED)


def nan_keys(precision: int, scale: int, modes: HandlingModes, form: str, how: str) -> tuple[Stream, list[OutRecord]]:
    """Records of rows with NaN and with the numbers that end the type, in a key of the table, a chosen one or one with an array."""
    typmod = (precision << 16 | scale) + 4
    name = "_numeric" if how == "array" else "numeric"
    columns = chosen(name, typmod, required=False) if how == "chosen" else keyed(name, typmod)
    stream = Stream(columns, modes, FORMS[form], chosen=CHOSEN if how == "chosen" else "")
    most = format(Decimal((0, (9,) * precision, -scale)), "f")
    texts = [f"{{{text}}}" if how == "array" else text for text in ("NaN", most, f"-{most}")]
    return stream, stream.records(*(m.insert(1, b"1", text.encode()) for text in texts))


@NAN_KEYS
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", ["key", "chosen", "array"])
def test_readers_take_nan_in_a_key_and_it_stays_apart(precision: int, scale: int, form: str, how: str) -> None:
    stream, records = nan_keys(precision, scale, HandlingModes(), form, how)
    keys = [record.key for record in records if record.key]
    if form == "json":
        found = [read_connect(key)["c"] for key in keys]
    else:
        found = [read_avro(stream.schemas, key)["c"] for key in keys]
    found = [value[0] if how == "array" else value for value in found]
    assert len(set(found)) == len(set(keys)) == 3
    if form == "json":
        found = [Decimal(f"{int.from_bytes(value, 'big', signed=True)}e-{scale}") for value in found]
    assert found[0] == SCALED[precision, scale]
    assert found[2] < found[1] < found[0]


def test_nan_in_a_key_of_numbers_in_json_is_no_other_key() -> None:
    stream = Stream(keyed("numeric", (8 << 16 | 3) + 4), form=replace(JSON, key=ConnectJsonFormat(numeric=True)))
    records = stream.records(*(m.insert(1, b"1", text) for text in (b"NaN", b"0.000", b"99999.999")))
    assert [json.loads(record.key or b"")["payload"]["c"] for record in records] == [100_000, 0, 99_999.999]


@NAN_KEYS
@pytest.mark.parametrize(
    "modes", [HandlingModes(key_nan="empty"), HandlingModes(out_of_range="exact")], ids=["earlier", "exact"]
)
def test_nan_in_a_key_is_empty_where_keys_keep_their_bytes(precision: int, scale: int, modes: HandlingModes) -> None:
    stream, [record, *_] = nan_keys(precision, scale, modes, "envelope", "key")
    assert record.key
    assert record.key[5:] == b"\x02\x00"
    [first, *_] = stream.changes(m.insert(1, b"1", b"NaN"))
    assert first.after
    assert first.after[1] == b""


@needs_native
@NAN_KEYS
@pytest.mark.parametrize("key_nan", ["number", "empty"])
def test_native_core_and_decoder_write_nan_in_a_key_alike(precision: int, scale: int, key_nan: str) -> None:
    typmod = (precision << 16 | scale) + 4
    python, native = (Stream(keyed("numeric", typmod), HandlingModes(key_nan=key_nan)) for _ in range(2))
    rows = [m.insert(1, b"1", text) for text in (b"NaN", f"{0:.{scale}f}".encode())]
    assert native.mixed(*rows) == [(record.key, record.value) for record in python.records(*rows)]


def test_a_chosen_timestamp_is_a_number_in_the_key_and_one_that_may_be_null() -> None:
    stream = Stream(chosen("timestamp", -1, required=False), chosen=CHOSEN)
    rows = [m.insert(1, b"1", text) for text in (b"infinity", None)]
    [change, _], records = stream.changes(*rows), stream.records(*rows)
    schema = key_schema("shop", change.table)
    assert schema
    plain = {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.MicroTimestamp"}
    assert schema["fields"] == [{"name": "c", "type": ["null", plain], "default": None}]
    keys = [read_avro(stream.schemas, record.key) for record in records if record.key]
    assert keys == [{"c": 9_223_372_036_825_200_000}, {"c": None}]
    StrictParser().parse(registered(schema))


def test_a_mask_that_would_make_two_chosen_keys_one_is_refused() -> None:
    planner = TableDecodePlanner(
        None,  # type: ignore[arg-type]
        HandlingModes(),
        TableFilters(),
        ColumnMasks(CAPTURE, (MaskRule("column.truncate.to.3.chars", (r"public\.t\.c",)),)),
        MessageKeys.parse(CHOSEN),
    )
    relation = Relation(1, "public", "t", "f", (RelationColumn("c", 25, -1, True),))
    with pytest.raises(CdcError, match="rows would share one"):
        build_plan(relation, None, TypeNames({25: PgType(25, "text")}, {}), (), planner)


def test_a_timestamp_of_the_key_is_a_number_in_the_key_as_debezium_has_it() -> None:
    stream = Stream(keyed("timestamp"))
    rows = [m.insert(1, b"1", b"infinity")]
    [record], [change] = stream.records(*rows), stream.changes(*rows)
    forms = [key_schema("shop", change.table), *former_key_schemas("shop", change.table)]
    now, bare, former = (form["fields"][1]["type"] for form in forms if form)
    assert now == {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.MicroTimestamp"}
    assert (bare, former) == ("long", {**now, "logicalType": "local-timestamp-micros"})
    assert record.key
    assert record.value
    assert read_avro(stream.schemas, record.key) == {"id": 1, "c": 9_223_372_036_825_200_000}
    assert read_avro(stream.schemas, record.value)["after"]["c"].year == 9999


@needs_native
@DEFAULTS
def test_native_core_and_decoder_write_the_same_of_keys_of_every_type(mode: str) -> None:
    python, native = (Stream(columns(required=True, in_key=True), MODES[mode]) for _ in range(2))
    expected = [(record.key, record.value) for record in python.records(*extremes(python, exact=True))]
    assert native.mixed(*extremes(native, exact=True)) == expected


def test_a_default_out_of_range_is_bounded_in_the_schema_of_the_row() -> None:
    key, column = keyed("timestamp")
    stream = Stream([key, MatrixColumn(column.name, column.oid, -1, True, True, "infinity")])
    [change] = stream.changes(m.insert(1, b"1", b"2024-02-29 12:00:00"))
    assert means(change.table.columns[1].type, change.table.columns[1].default)
    assert change.table.columns[1].default == 253_402_300_799_999_999


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "nanoseconds"])
def test_a_strict_parser_takes_the_key_schema_of_every_type(mode: str) -> None:
    stream = Stream(columns(required=True, in_key=True), MODES[mode])
    stream.records(*extremes(stream, exact=True))
    for schema in stream.schemas.values():
        StrictParser().parse(schema)


@pytest.mark.parametrize("form", [0, 1])
def test_a_topic_keeps_the_key_schema_that_it_has(form: int) -> None:
    stream, log = Stream(keyed("timestamp")), SchemaLog()
    [change] = stream.changes(m.insert(1, b"1", b"2024-02-29 12:00:00"))
    former = former_key_schemas("shop", change.table)[form]
    meta = RegistrationMeta(1, ("public", "t"), Position(1, 0, 0))
    [number] = register_in_memory(log)([Registration("shop.public.t-key", former, meta)])
    [record] = Encoder("shop", register_in_memory(log)).encode([change])
    assert record.key
    assert record.key[1:5] == number.to_bytes(4, "big")

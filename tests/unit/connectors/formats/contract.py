"""What every wire format has to do: write each type of column and read it again, with nulls, hostile values and tombstones, over a
change of the schema; and say of bytes that are not its own that they cannot be read, without their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from cdcworker.connectors.converters.config import reader_of, wire_of
from cdcworker.connectors.formats.format import RECORD_UNREADABLE, ReadsValues, Typed
from cdcworker.connectors.transform_chain.record_writer import AvroValueWriter
from cdcworker.connectors.transforms.avro_form import schema_of
from cdcworker.connectors.transforms.data import DATE, DECIMAL, TIME, TIMESTAMP
from cdcworker.schemas.change import Avro, JsonObject
from cdcworker.schemas.decode import UNKNOWN_ID
from cdcworker.schemas.encode import BAD_VALUE
from cdcworker.schemas.errors import CODES, CdcError
from cdcworker.schemas.log import Registration, RegistrationMeta, SchemaLog, StoredSchema, register_in_memory
from cdcworker.schemas.record_format import AVRO, RecordWriter

CANARY = "canary-5f1c"


def logical(kind: str, name: str, **parameters: str) -> JsonObject:
    made: JsonObject = {"type": kind, "connect.version": 1, "connect.name": name}
    return {**made, "connect.parameters": parameters} if parameters else made


PRICE = logical("bytes", DECIMAL, **{"scale": "2", "connect.decimal.precision": "38"})
PLACE: JsonObject = {
    "type": "record", "name": "Place", "namespace": "shop", "connect.name": "shop.Place",
    "fields": [{"name": "x", "type": "double"}, {"name": "label", "type": ["null", "string"], "default": None}],
}  # fmt: skip
VALUES: Mapping[str, tuple[Avro, list[Any]]] = {
    "int16": ({"type": "int", "connect.type": "int16"}, [0, -1, 32767, -32768]),
    "int32": ("int", [0, 1, -1, 2**31 - 1, -(2**31)]),
    "int64": ("long", [0, -1, 2**63 - 1, -(2**63)]),
    "float32": ("float", [0.0, -1.5, 3.4028234663852886e38]),
    "float64": ("double", [0.0, 0.1, -1.7976931348623157e308, 5e-324]),
    "boolean": ("boolean", [True, False]),
    "string": ("string", ["", "a", "\0", "ü€😀", '"\\\n\u2028', "x" * 70_000, "null", "{"]),
    "bytes": ("bytes", [b"", b"\0\xff", b"x" * 70_000]),
    "decimal": (PRICE, [b"\0", b"\x04\xd2", b"\xff", (10**38 - 1).to_bytes(16, "big", signed=True)]),
    "date": (logical("int", DATE), [0, 20_000, -719_000]),
    "time": (logical("int", TIME), [0, 86_399_999]),
    "timestamp": (logical("long", TIMESTAMP), [0, 1, -1, 1_764_288_000_123]),
    "array": ({"type": "array", "items": "string"}, [[], ["a", ""], ["ü"] * 1000]),
    "numbers": ({"type": "array", "items": "long"}, [[], [0, -1, 2**62]]),
    "map": ({"type": "map", "values": "string"}, [{}, {"a": "b", "": ""}]),
    "nested": (PLACE, [{"x": 1.0, "label": "a"}, {"x": -2.5, "label": None}]),
}
"""By the name of a column its type, and values of it."""


def row_kind(*names: str, required: bool = False, more: tuple[JsonObject, ...] = ()) -> JsonObject:
    """Returns a record of these columns, which may be null."""
    fields = [
        {"name": name, "type": VALUES[name][0]}
        if required
        else {"name": name, "type": ["null", VALUES[name][0]], "default": None}
        for name in names
    ]
    return {
        "type": "record", "name": "Value", "namespace": "shop.orders", "connect.name": "shop.orders.Value",
        "fields": [*fields, *more],
    }  # fmt: skip


@dataclass
class FormatCase:
    """A format under one configuration, and what of the values it keeps."""

    name: str
    config: Mapping[str, str]
    single: tuple[str, ...] = ()
    """The columns whose values it writes by themselves; empty: it writes records."""
    absent: Mapping[str, Any] = field(default_factory=dict)
    """By column what a null is read as, where it is no null."""
    keeps_types: bool = True
    """Whether a value is read with its schema, and bytes as bytes."""
    foreign: tuple[bytes, ...] = (b"", CANARY.encode(), b"\0\0\0\0\1" + CANARY.encode(), b"\xff" * 9)
    """Bytes that it does not read."""
    log: SchemaLog = field(default_factory=SchemaLog)

    def __str__(self) -> str:
        return self.name

    def _config(self) -> dict[str, str]:
        return {f"value.converter{'.' if key else ''}{key}": value for key, value in self.config.items()}

    def writer(self, kind: Avro, *, optional: bool = False) -> RecordWriter:
        """Returns a writer whose schema is registered."""
        wire = wire_of(self._config(), "value")
        if wire == AVRO:  # which takes rows by place, and is written by name behind transforms
            writer: RecordWriter = AvroValueWriter(replace(schema_of(kind), optional=False))
        else:
            writer = wire.writer(kind, optional=optional)
        if writer.schema is not None:
            registration = Registration("t-value", writer.schema, RegistrationMeta())
            writer.bind(register_in_memory(self.log)([registration])[0])
        return writer

    def reader(self) -> ReadsValues:
        return reader_of(self._config(), "value", self)

    def stored(self, id: int) -> StoredSchema:
        found = self.log.by_id(id)
        if found is None:
            raise CdcError(UNKNOWN_ID, "the schema id is not in the log", where={"id": id})
        return found

    def names(self) -> tuple[str, ...]:
        return self.single or tuple(VALUES)

    def expected(self, name: str, value: Any) -> Any:
        """Returns what is read of a value, as far as it is kept."""
        if isinstance(value, dict) and name == "nested":
            return {key: self.absent.get("string") if item is None else item for key, item in value.items()}
        return self.absent.get(name) if value is None else value


NO_LISTS: Mapping[str, Any] = {"array": [], "numbers": [], "map": {}}
"""What a null is where arrays and maps have none."""
ZEROES: Mapping[str, Any] = {
    "int16": 0, "int32": 0, "int64": 0, "float32": 0.0, "float64": 0.0, "boolean": False, "string": "", "bytes": b"",
    **NO_LISTS,
}  # fmt: skip
"""What a null is in a format that has none."""


def written(writer: RecordWriter, value: Any) -> bytes:
    return writer.wrap(writer.body(value))


def rows() -> Iterator[dict[str, Any]]:
    """Rows that have each value once."""
    most = max(len(values) for _, values in VALUES.values())
    for number in range(most):
        yield {name: values[number % len(values)] for name, (_, values) in VALUES.items()}


class FormatContract:
    """The suite. A test class names its cases by `params` of the fixture `case`."""

    def test_each_type_is_read_as_it_was_written(self, case: FormatCase) -> None:
        reader = case.reader()
        if case.single:
            for name in case.single:
                kind, values = VALUES[name]
                writer = case.writer(kind)
                for value in values:
                    got = reader.read(written(writer, value))
                    assert got.value == case.expected(name, value), name
            return
        writer = case.writer(row_kind(*VALUES, required=True))
        for row in rows():
            self.require_equal(case, reader.read(written(writer, row)), row)

    def test_a_tuple_is_written_as_a_mapping_is(self, case: FormatCase) -> None:
        if case.single or case.name == "avro":
            pytest.skip("the format writes single values, or has a writer for each")
        writer = case.writer(row_kind(*VALUES))
        for row in rows():
            assert writer.body(row) == writer.body(tuple(row.values()))

    def test_nulls(self, case: FormatCase) -> None:
        if case.single:
            writer = case.writer(["null", VALUES[case.single[0]][0]], optional=True)
            assert writer.null is None, "a single null is no value"
            return
        writer, reader = case.writer(row_kind(*VALUES)), case.reader()
        self.require_equal(case, reader.read(written(writer, dict.fromkeys(VALUES))), dict.fromkeys(VALUES))
        self.require_equal(case, reader.read(written(writer, {})), dict.fromkeys(VALUES))
        for name in VALUES:
            row = {**next(rows()), name: None}
            self.require_equal(case, reader.read(written(writer, row)), row)

    def require_equal(self, case: FormatCase, got: Typed, row: Mapping[str, Any]) -> None:
        assert isinstance(got.value, dict)
        if not case.keeps_types:
            assert got.value.keys() == row.keys()
            return
        expected = {name: case.expected(name, value) for name, value in row.items()}
        assert got.value == expected
        assert got.schema is not None
        assert [name for name, _ in got.schema.fields] == list(row)
        for name, of in got.schema.fields:
            if name in ("decimal", "date", "time", "timestamp"):
                assert of.name == VALUES[name][0]["connect.name"]  # type: ignore[call-overload,index]
        if "decimal" in row:
            assert got.schema.by_name["decimal"].parameters["scale"] == "2"  # type: ignore[index]

    def test_a_tombstone_is_none(self, case: FormatCase) -> None:
        assert case.reader().read(None) == (None, None)

    def test_records_before_and_after_a_change_of_the_schema_are_read_by_one_reader(self, case: FormatCase) -> None:
        if case.single:
            pytest.skip("single values have no columns")
        reader = case.reader()
        old, new = case.writer(row_kind("int32", "string")), case.writer(row_kind("int32", "bytes", "string"))
        records = [
            written(old, {"int32": 1, "string": "a"}),
            written(new, {"int32": 2, "bytes": b"\1", "string": "b"}),
            written(old, {"int32": 3, "string": "c"}),
        ]
        assert [reader.read(record).value["int32"] for record in records] == [1, 2, 3]
        assert [len(reader.read(record).value) for record in records] == [2, 3, 2]

    def test_a_null_of_a_row_that_may_be_null(self, case: FormatCase) -> None:
        if case.single:
            pytest.skip("the format writes single values")
        writer = case.writer(row_kind("int32"), optional=True)
        if writer.null is not None:
            assert case.reader().read(writer.wrap(writer.null)).value is None

    def test_bytes_that_are_not_of_the_format_are_named_without_what_they_hold(self, case: FormatCase) -> None:
        if not case.single:
            writer = case.writer(row_kind("int32", "string"))
            whole = written(writer, {"int32": 7, "string": CANARY})
            foreign = (*case.foreign, whole[: len(whole) - 3])
        else:
            foreign = case.foreign
        for data in foreign:
            with pytest.raises(CdcError) as caught:
                case.reader().read(data)
            assert caught.value.kind in ("data", "transient"), data
            told = f"{caught.value} {caught.value.where}"
            assert CANARY not in told
            assert CANARY.encode().hex() not in told

    def test_values_that_do_not_fit_are_refused(self, case: FormatCase) -> None:
        if case.name == "avro" or not case.keeps_types:
            pytest.skip("tested by itself")
        names = [name for name in ("int32", "int64", "boolean", "bytes") if name in case.names()]
        for name in names:
            kind = VALUES[name][0] if case.single else row_kind(name)
            writer = case.writer(kind)
            wrong: Any = object()
            with pytest.raises(BAD_VALUE):
                writer.body(wrong if case.single else {name: wrong})

    def test_a_value_in_a_header_is_bytes(self, case: FormatCase) -> None:
        name = case.names()[0]
        value = VALUES[name][1][0]
        writer = case.writer(VALUES[name][0] if case.single else row_kind(name))
        assert isinstance(writer.in_header(value if case.single else {name: value}), bytes)

    def test_a_record_with_fields_is_refused_by_a_format_of_single_values(self, case: FormatCase) -> None:
        if not case.single or "string" in case.single:
            pytest.skip("the format writes records")
        with pytest.raises(CdcError) as caught:
            case.writer(row_kind("int32"))
        assert caught.value.code == "schema.no_form"

    def test_the_code_of_unreadable_records_is_declared(self, case: FormatCase) -> None:
        assert RECORD_UNREADABLE in CODES

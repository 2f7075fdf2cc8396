"""Values, keys, defaults and messages as genuine Debezium wrote them: `../genuine` has what its classes answered."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cdcworker.connectors.capture.config.filters import TableFilters
from cdcworker.connectors.postgres.decode.table_plan import TableDecodePlanner, build_plan, message_table
from cdcworker.connectors.postgres.pgoutput import Relation, RelationColumn
from cdcworker.connectors.postgres.server.catalog import ColumnInfo, TableInfo, TypeNames
from cdcworker.connectors.postgres.types import text_values
from cdcworker.connectors.postgres.types.mapping import HandlingModes, PgType, TypeRegistry, map_type
from cdcworker.schemas.envelope import column_field
from cdcworker.schemas.record_format import ConnectJsonFormat, RecordFormat

from .. import messages as m
from ..oracle import needs_native
from ..type_matrix import TYPES, MatrixColumn, Stream

GENUINE = Path(__file__).parents[1] / "genuine"
OIDS = {pg.name: oid for oid, pg in TYPES.items() if oid < 2000}
ZONED = PgType(OIDS["timestamptz"], "timestamptz")


def genuine(name: str):
    return json.loads((GENUINE / f"{name}.json").read_text())


TEXTS = genuine("timestamptz")


PADDED = HandlingModes()


def parser_of(pg: PgType, typmod: int, modes: HandlingModes = PADDED):
    return map_type(pg, typmod, modes, TypeRegistry({ZONED.oid: ZONED})).parse


@pytest.mark.parametrize("precision", [-1, 0, 1, 2, 3, 4, 5, 6])
def test_a_timestamptz_has_the_digits_of_its_precision(precision):
    pairs = [(text, expected) for digits, text, expected in TEXTS["timestamptz"] if digits == precision]
    assert len(pairs) > 8
    parse, listed = (parser_of(pg, precision) for pg in (ZONED, PgType(1, "_timestamptz", element=ZONED.oid)))
    domain = parser_of(PgType(2, "moment", "d", base=ZONED.oid, base_typmod=precision), -1)
    for text, expected in pairs:
        assert (parse(text.encode()), domain(text.encode())) == (expected, expected)
        assert listed(f'{{"{text}",NULL}}'.encode()) == [expected, None]


def test_digits_beyond_the_precision_are_left_out():
    assert parser_of(ZONED, 3)(b"2024-02-29 12:34:56.789999+00") == "2024-02-29T12:34:56.789Z"
    assert parser_of(ZONED, 0)(b"2024-02-29 12:34:56.789999+00") == "2024-02-29T12:34:56Z"


def test_shortest_is_the_text_of_earlier_versions():
    parse = parser_of(ZONED, 3, HandlingModes(timestamptz="shortest"))
    assert parse is text_values.timestamptz_text
    assert parse(b"2024-02-29 12:34:56.7+00") == "2024-02-29T12:34:56.7Z"


def test_a_timetz_has_no_zeros_at_the_end_of_its_fraction():
    for precision, text, expected in TEXTS["timetz"]:
        parse = parser_of(PgType(1, "timetz"), precision)
        if text.endswith("+00") and not text.startswith("24"):
            assert parse(text.encode()) == expected
        else:  # its own offset is kept
            assert "." not in expected or not expected[:-1].endswith("0")


KEY_TYPMODS = {"at": -1, "at0": 0, "at3": 3}


def keyed(**more) -> Stream:
    columns = [
        MatrixColumn(name, ZONED.oid, typmod, required=True, in_key=True) for name, typmod in KEY_TYPMODS.items()
    ]
    return Stream(columns, **more)


def rows() -> tuple[list[bytes], list[dict[str, str]]]:
    inserts = [m.insert(1, *(texts[name].encode() for name in KEY_TYPMODS)) for texts, _ in TEXTS["keys"]]
    return inserts, [{name: key[name] for name in KEY_TYPMODS} for _, key in TEXTS["keys"]]


def test_a_key_in_json_has_debeziums_bytes():
    inserts, expected = rows()
    plain = ConnectJsonFormat(schemas=False)
    stream = keyed(form=RecordFormat(plain, plain))
    made = [record.key for record in stream.encoder.encode(stream.changes(*inserts))]
    assert made == [json.dumps(key, separators=(",", ":")).encode() for key in expected]


def avro_key(texts: dict[str, str]) -> bytes:
    return b"".join(bytes([2 * len(text)]) + text.encode() for text in texts.values())


@needs_native
def test_a_key_in_avro_has_debeziums_texts_in_python_and_natively():
    inserts, expected = rows()
    stream = keyed()
    made = [record.key for record in stream.encoder.encode(stream.changes(*inserts))]
    assert [key[5:] for key in made] == [avro_key(texts) for texts in expected]
    assert keyed().native_values(*inserts) == stream.values(*inserts)
    shortest = HandlingModes(timestamptz="shortest")
    assert keyed(modes=shortest).native_values(*inserts) == keyed(modes=shortest).values(*inserts)


# -- defaults ---------------------------------------------------------------------------------------------------------

COLUMN_TYPES = {
    **dict.fromkeys(("n2", "nn2", "r", "big"), ("numeric", (10 << 16 | 2) + 4)), "n0": ("numeric", (10 << 16) + 4),
    "nv": ("numeric", -1), "m": ("money", -1), "ts": ("timestamp", 3), "tz": ("timestamptz", -1), "tz3": ("timestamptz", 3),
    "dt": ("date", -1), "tt": ("time", -1), "b": ("bool", -1), "i": ("int4", -1), "t": ("text", -1), "j": ("jsonb", -1),
    "u": ("uuid", -1), "iv": ("interval", -1),
}  # fmt: skip
DEFAULTS = genuine("defaults")["columns"]


def default_of(name: str, expression: str, *, optional: bool):
    """The default that the column's schema has, in Avro's JSON."""
    kind, typmod = COLUMN_TYPES[name]
    oid = OIDS[kind]
    relation = Relation(1, "public", "d", "d", (RelationColumn(name, oid, typmod, False),))
    info = TableInfo(1, "public", "d", "d", {name: ColumnInfo(1, name, oid, typmod, not optional, expression)}, ())
    planner = TableDecodePlanner(None, HandlingModes(), TableFilters())  # type: ignore[arg-type]
    plan = build_plan(relation, info, TypeNames(TYPES, {(oid, typmod): kind}), (), planner)
    return column_field(plan.table.columns[0], {}).get("default")


@pytest.mark.parametrize("name", sorted(COLUMN_TYPES))
def test_a_default_is_written_as_debezium_writes_it(name):
    given = DEFAULTS[name]
    expected = given["default"]
    if given["type"] == "bytes" and expected is not None:
        expected = base64.b64decode(expected).decode("latin-1")
    if name == "nv":  # a record is a default here as well
        expected = {"scale": 1, "value": "\x0f"}
    assert default_of(name, given["expression"], optional=given["optional"]) == expected


# -- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["bytes", "base64", "base64-url-safe", "hex"])
def test_the_content_of_a_message_has_debeziums_form(mode):
    found = genuine("messages")
    content = bytes if mode == "bytes" else text_values.bytes_as(mode)
    made = [content(bytes.fromhex(sent)) for sent in found["sent"]]
    expected = found["modes"][mode]
    assert message_table(mode).columns[1].type == expected["type"]
    if mode == "bytes":
        # Bytes are base64 in JSON, where Debezium's text comes from.
        made = [base64.b64encode(value).decode() for value in made]
    assert made == expected["contents"]

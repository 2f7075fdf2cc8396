"""Every format that ships keeps the contract of formats."""

from __future__ import annotations

import pytest
from cdcworker.connectors.converters.shipped import BY_NAME, FORMATS

from tests.unit.connectors.formats.contract import CANARY, NO_LISTS, ZEROES, FormatCase, FormatContract

CODES = {
    "Short": "int16",
    "Integer": "int32",
    "Long": "int64",
    "Float": "float32",
    "Double": "float64",
    "Boolean": "boolean",
}
NO_TEXT = (b"\xff", b"\xfe\xff")


def cases() -> list[FormatCase]:
    singles = [
        FormatCase(name, {"": f"{name}Converter"}, single=(kind,), foreign=(b"", CANARY.encode(), b"\2"))
        for name, kind in CODES.items()
    ]
    protobuf = {"": "protobuf"}
    return [
        FormatCase("avro", {"": "avro"}),
        FormatCase("json", {"": "json"}),
        FormatCase("json numeric", {"": "json", "decimal.format": "NUMERIC"}),
        FormatCase(
            "json plain", {"": "json", "schemas.enable": "false"}, keeps_types=False, foreign=(b"", b"{", b"\xff")
        ),
        FormatCase("json schema", {"": "json_schema"}),
        FormatCase("json schema numeric", {"": "json_schema", "decimal.format": "NUMERIC"}),
        FormatCase("protobuf", protobuf, absent=ZEROES),
        FormatCase("protobuf optional", {**protobuf, "optional.for.nullables": "true"}, absent=NO_LISTS),
        FormatCase("protobuf wrapped", {**protobuf, "wrapper.for.nullables": "true"}, absent=NO_LISTS),
        FormatCase("cloud events", {"": "cloud_events"}, keeps_types=False, foreign=(b"", b"{", b"\xff")),
        FormatCase(
            "message pack", {"": "message_pack"}, keeps_types=False, foreign=(b"", b"\xc1", b"\x81", b"\x91" * 99)
        ),
        FormatCase("string", {"": "string"}, single=("string",), foreign=NO_TEXT),
        FormatCase("bytes", {"": "bytes"}, single=("bytes",), foreign=()),
        FormatCase("binary data", {"": "BinaryDataConverter"}, single=("bytes",), foreign=()),
        *singles,
    ]


class TestShippedFormats(FormatContract):
    @pytest.fixture(params=cases(), ids=str)
    def case(self, request: pytest.FixtureRequest) -> FormatCase:
        made: FormatCase = request.param
        return FormatCase(**{name: getattr(made, name) for name in made.__dataclass_fields__ if name != "log"})


def test_each_format_has_a_case() -> None:
    assert {BY_NAME[case.config[""]].name for case in cases()} == {each.name for each in FORMATS}

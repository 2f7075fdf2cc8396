"""What .proto files of others say, and what a reader makes of records of theirs."""

from __future__ import annotations

import pytest
from cdcworker.connectors.formats.json_payload import UNFIT
from cdcworker.connectors.formats.protobuf import wire
from cdcworker.connectors.formats.protobuf.from_connect import ProtobufOptions, made_of
from cdcworker.connectors.formats.protobuf.proto_parser import ProtoRefused, parse_proto
from cdcworker.connectors.formats.protobuf.proto_text import proto_text
from cdcworker.connectors.formats.protobuf.reader import FileReader
from cdcworker.connectors.transforms.data import ConnectSchema, struct
from cdcworker.schemas.errors import CdcError

SHOP = """
// an order
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import public "google/protobuf/wrappers.proto";
option java_package = "com.example";
service Orders { rpc Get (Order) returns (Order) { option deprecated = true; } }
enum Color { option allow_alias = true; RED = 0; BLUE = 1 [deprecated = true]; reserved 5; }
message Other { int64 id = 1; }
message Order {
  reserved 20, 21 to 30;
  option (x) = { a: [1, 2] };
  sint32 id = 1;
  optional string note = 2 [json_name = "n;te", (confluent.field_meta) = {params: [{value: "v", key: "k"}]}];
  repeated fixed64 sizes = 3;
  map<string, Item> items = 4;
  Color color = 5;
  oneof payment { string card = 6; .shop.Other other = 7; }
  google.protobuf.Timestamp at = 8; /* a
  comment */
  message Item { uint32 n = 1; Inner inner = 2; message Inner { bool yes = 1; } }
  google.protobuf.StringValue maybe = 9;
  repeated Item.Inner inners = 10;
}
"""


def reader(text: str, *path: int, **options: bool):
    return FileReader(parse_proto(text), ProtobufOptions(**options)).at(path or (0,))


def field(number: int, kind: int, value: int | bytes) -> bytes:
    head = wire.tag(number, kind)
    if isinstance(value, int):
        return head + wire.varint(value)
    return head + (wire.varint(len(value)) if kind == wire.BYTES else b"") + value


def test_a_file_of_somebody_else_is_read_with_what_its_message_means():
    data = b"".join(
        (
            field(1, 0, 13), field(2, 2, b"hi"), field(3, 2, (7).to_bytes(8, "little") * 2),
            field(4, 2, field(1, 2, b"k") + field(2, 2, field(1, 0, 9) + field(2, 2, field(1, 0, 1)))),
            field(5, 0, 1), field(6, 2, b"4711"), field(8, 2, field(1, 0, 5) + field(2, 0, 7_000_000)),
            field(10, 2, field(1, 0, 1)), field(10, 2, b""), field(999, 5, b"abcd"),
        )
    )  # fmt: skip
    found = reader(SHOP, 1)
    assert found.read(data) == {
        "id": -7, "note": "hi", "sizes": [7, 7], "items": {"k": {"n": 9, "inner": {"yes": True}}}, "color": "BLUE",
        "payment_0": {"card": "4711"}, "at": 5007, "maybe": None, "inners": [{"yes": True}, {"yes": False}],
    }  # fmt: skip
    by_name = found.schema.by_name
    assert (by_name["id"].type, by_name["items"].type, by_name["color"].name) == ("int32", "map", "Color")
    assert [name for name, _ in by_name["payment_0"].fields] == ["card", "other"]
    empty = found.read(b"")
    assert (empty["id"], empty["note"], empty["color"], empty["payment_0"], empty["sizes"]) == (
        0,
        None,
        "RED",
        None,
        [],
    )
    assert reader(SHOP, 1, wrapper_for_nullables=True).read(field(9, 2, field(1, 2, b"w")))["maybe"] == "w"
    assert reader(SHOP, 1, 0).read(field(1, 0, 3)) == {"n": 3, "inner": None}


def test_the_parameters_of_confluents_option_are_found_whatever_their_order():
    fields = {one.name: one for one in parse_proto(SHOP).messages[1].fields}
    assert fields["note"].params == {"k": "v"}
    assert fields["id"].params == {}


@pytest.mark.parametrize(
    "text",
    [
        "message A { A a = 1; }",
        "message A { Missing a = 1; }",
        "message A { repeated group G = 1 {} }",
        "message A {",
        "message A { int32 n = x; }",
        "message A { int32 n = 1 }",
        "\x00",
        "message A " + "{ message A " * 100,
        "".join(f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}" for n in range(30))
        + "message M30 { int32 n = 1; }",
    ],
)
def test_a_file_that_cannot_be_read_is_refused_and_soon(text):
    with pytest.raises(ProtoRefused):
        reader(text)


@pytest.mark.parametrize(
    "data", [b"\x08", b"\x0a\x05a", b"\xff" * 11, b"\x0b", b"\x00\x01", field(1, 2, b"x"), field(2, 0, 1)]
)
def test_bytes_that_are_no_message_of_the_type_are_refused(data):
    with pytest.raises(UNFIT):
        reader(SHOP, 1).read(data)


def test_names_that_protocol_buffers_do_not_have_are_refused_or_scrubbed():
    schema = struct(("größe in cm", ConnectSchema("int32")), name="my-shop.orders.Value")
    with pytest.raises(CdcError) as caught:
        made_of(schema, ProtobufOptions())
    assert caught.value.code == "schema.no_form"
    assert "scrub.invalid.names" in caught.value.hint
    made = made_of(schema, ProtobufOptions(scrub_invalid_names=True))
    assert made.name == "my_shop.orders.Value"
    assert "int32 gr_C3_B6_C3_9Fe_in_cm = 1;" in proto_text(made.file)


def test_an_array_of_arrays_has_no_form():
    inner = ConnectSchema("array", value_schema=ConnectSchema("string"))
    with pytest.raises(CdcError) as caught:
        made_of(struct(("a", ConnectSchema("array", value_schema=inner)), name="a.B"), ProtobufOptions())
    assert caught.value.code == "schema.no_form"


def test_a_record_inside_of_another_is_described_where_its_users_see_it():
    place = struct(("x", ConnectSchema("int32")), name="Place")
    holder = struct(("place", place), name="Holder")
    text = proto_text(made_of(struct(("holder", holder), ("place", place), name="All"), ProtobufOptions()).file)
    file = parse_proto(text)
    FileReader(file, ProtobufOptions()).at((0,))
    assert text.count("message Place") == 2

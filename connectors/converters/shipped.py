"""The formats that ship with the product, and which of them a converter's name means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cdcworker.connectors.formats import (
    avro,
    byte_array,
    cloud_events,
    connect_json,
    json_schema,
    message_pack,
    primitives,
    text,
)
from cdcworker.connectors.formats.format import Format
from cdcworker.connectors.formats.protobuf import converter as protobuf

FORMATS: Final[tuple[Format, ...]] = (
    *avro.FORMATS,
    *connect_json.FORMATS,
    *json_schema.FORMATS,
    *protobuf.FORMATS,
    *cloud_events.FORMATS,
    *message_pack.FORMATS,
    *text.FORMATS,
    *byte_array.FORMATS,
    *primitives.FORMATS,
)
BY_NAME: Final[Mapping[str, Format]] = {name: each for each in FORMATS for name in each.names}
DEFAULT: Final = FORMATS[0]

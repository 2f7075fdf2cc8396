"""The `source` block as every change begins with it: all fields, of which a transaction and an event fill in theirs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from cdcworker.schemas.change import Avro

SNAPSHOT: Final[dict[str, Any]] = {
    "type": "string",
    "connect.version": 1,
    "connect.parameters": {
        "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
    },
    "connect.default": "false",
    "connect.name": "io.debezium.data.Enum",
}
"""The type of the field `snapshot`."""


def optional(avro: Avro) -> dict[str, Any]:
    """Returns the members of a field that may be null."""
    return {"type": ["null", avro], "default": None}


@cache
def version() -> str:
    """Returns this product's version."""
    from importlib.metadata import version as installed

    return installed("cdcworker")


def template_of(schema: Mapping[str, Any], **known: Any) -> dict[str, Any]:
    """Returns the fields of a block's Avro schema in their order, with those that are known of every change of a connector."""
    names = (field["name"] for field in schema["fields"])
    given = {"version": version(), "snapshot": "false", **known}
    return {name: given.get(name) for name in names} | {"tx_sub": 0}

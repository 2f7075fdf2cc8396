"""The `source` block as every change begins with it: all fields, of which a transaction and an event fill in theirs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any


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

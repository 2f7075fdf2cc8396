"""The parameters by which a column's schema names its type in PostgreSQL, as Debezium's `__debezium.source.column.*`."""

from __future__ import annotations

from typing import Final

from cdcworker.connectors.postgres.types.mapping import PgType
from cdcworker.schemas.envelope import SOURCE_PARAMETERS

_HEADER_BYTES: Final = 4
"""What a type modifier of texts and numbers counts beside the length."""


def type_parameters(pg: PgType, typmod: int) -> dict[str, str]:
    """Returns the type's name, length and scale."""
    found = {f"{SOURCE_PARAMETERS}type": pg.name.upper()}
    if typmod < 0:
        return found
    name = pg.name.removeprefix("_")
    if name == "numeric":
        number = typmod - _HEADER_BYTES
        scale = ((number & 0x7FF) ^ 0x400) - 0x400
        return {
            **found,
            f"{SOURCE_PARAMETERS}length": str(number >> 16 & 0xFFFF),
            f"{SOURCE_PARAMETERS}scale": str(scale),
        }
    if name in ("varchar", "bpchar"):
        return {**found, f"{SOURCE_PARAMETERS}length": str(typmod - _HEADER_BYTES)}
    if name in ("bit", "varbit", "time", "timetz", "timestamp", "timestamptz"):
        return {**found, f"{SOURCE_PARAMETERS}length": str(typmod)}
    return found

"""`column.propagate.source.type` and `datatype.propagate.source.type`: columns whose schemas name the database's type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from cdcworker.connectors.capture.column_mapping import MappedType
from cdcworker.connectors.config.definition import ConfigKey, regex_list
from cdcworker.connectors.postgres.types.mapping import PgType
from cdcworker.schemas import patterns
from cdcworker.schemas.envelope import SOURCE_PARAMETERS

COLUMNS: Final = "column.propagate.source.type"
TYPES: Final = "datatype.propagate.source.type"
_HEADER_BYTES: Final = 4
"""What a type modifier of texts and numbers counts beside the length."""


def propagation_keys() -> Iterable[ConfigKey]:
    """The two keys."""
    for name, of in ((COLUMNS, "columns by their full names"), (TYPES, "types as schema.table.TYPE")):
        yield ConfigKey(
            name, "LIST", validator=regex_list, group="Values", importance="LOW",
            doc=f"Anchored regular expressions of {of}, whose schemas name the source's type, length and scale in parameters, as "
            "Debezium's. It is always in cdc.type. Records such as VariableScaleDecimal have no parameters.",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PropagatedTypes:
    """The columns, by their names or by their types, that name their source's type."""

    columns: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    def apply(self, mapped: MappedType, column: tuple[str, str, str], pg: PgType, typmod: int) -> MappedType:
        """Returns the mapping with the parameters, where the column is chosen; `column`: schema, table and name."""
        if not (self.columns or self.types):
            return mapped
        by_name = patterns.matches_any(self.columns, ".".join(column), ignore_case=True)
        by_type = patterns.matches_any(self.types, ".".join((*column[:2], pg.name)), ignore_case=True)
        avro: dict[str, Any] = mapped.avro if isinstance(mapped.avro, dict) else {"type": mapped.avro}
        # A named type has one definition, which all of its columns share.
        if not (by_name or by_type) or avro["type"] == "record":
            return mapped
        parameters = {**avro.get("connect.parameters", {}), **_parameters(pg, typmod)}
        return replace(mapped, avro={**avro, "connect.parameters": parameters})


def _parameters(pg: PgType, typmod: int) -> dict[str, str]:
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

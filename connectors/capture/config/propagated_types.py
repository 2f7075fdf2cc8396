"""`column.propagate.source.type` and `datatype.propagate.source.type`: columns whose schemas name the database's type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cdcworker.connectors.capture.column_mapping import MappedType
from cdcworker.connectors.config.definition import ConfigKey, regex_list
from cdcworker.schemas import patterns

COLUMNS: Final = "column.propagate.source.type"
TYPES: Final = "datatype.propagate.source.type"


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

    def apply(
        self,
        mapped: MappedType,
        column: tuple[str, str, str],
        type_name: str,
        parameters: Callable[[], Mapping[str, str]],
    ) -> MappedType:
        """Returns the mapping with what `parameters` makes of the type, where the column is chosen; `column`: what holds tables,
        table and name."""
        if not (self.columns or self.types):
            return mapped
        by_name = patterns.matches_any(self.columns, ".".join(column), ignore_case=True)
        by_type = patterns.matches_any(self.types, ".".join((*column[:2], type_name)), ignore_case=True)
        avro: dict[str, Any] = mapped.avro if isinstance(mapped.avro, dict) else {"type": mapped.avro}
        # A named type has one definition, which all of its columns share.
        if not (by_name or by_type) or avro["type"] == "record":
            return mapped
        merged = {**avro.get("connect.parameters", {}), **parameters()}
        return replace(mapped, avro={**avro, "connect.parameters": merged})


def propagated_of(raw: Mapping[str, Any]) -> PropagatedTypes:
    """The columns and types of a parsed configuration."""
    return PropagatedTypes(tuple(raw[COLUMNS] or ()), tuple(raw[TYPES] or ()))

"""Which tables and columns are captured: Debezium's include and exclude lists."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdcworker.connectors.capture.config.table_share import WHOLE, TableShare
from cdcworker.schemas import patterns


@dataclass(frozen=True)
class TableFilters:
    """Anchored, case-insensitive patterns of full names, as Debezium's; of each pair of lists at most one is given."""

    schema_include: tuple[str, ...] = ()
    schema_exclude: tuple[str, ...] = ()
    table_include: tuple[str, ...] = ()
    table_exclude: tuple[str, ...] = ()
    column_include: tuple[str, ...] = ()
    column_exclude: tuple[str, ...] = ()
    held: frozenset[str] = frozenset()
    """Full names of tables that are held back."""
    signals: str = ""
    """Full name of the signal table, which is read whatever else is."""
    share: TableShare = WHOLE
    system_schemas: tuple[str, ...] = ()
    """Patterns of the schemas in which the database keeps its own tables; none of those is captured."""

    def table(self, schema: str, table: str) -> bool:
        """Returns whether the table is captured."""
        if self.signals and f"{schema}.{table}" == self.signals:
            return True
        if any(re.fullmatch(pattern, schema, re.S) for pattern in self.system_schemas):
            return False
        full = f"{schema}.{table}"
        return (
            full not in self.held
            and self.share.has(full)
            and _chosen(schema, self.schema_include, self.schema_exclude)
            and _chosen(full, self.table_include, self.table_exclude)
        )

    def holds(self, schema: str) -> bool:
        """Returns whether tables of a schema may be captured, as far as its name tells."""
        is_own = any(re.fullmatch(pattern, schema, re.S) for pattern in self.system_schemas)
        return not is_own and _chosen(schema, self.schema_include, self.schema_exclude)

    def column(self, schema: str, table: str, column: str) -> bool:
        """Returns whether the column of a captured table is captured."""
        return _chosen(f"{schema}.{table}.{column}", self.column_include, self.column_exclude)

    @property
    def all_columns(self) -> bool:
        return not self.column_include and not self.column_exclude


def filters_of(raw: Mapping[str, Any], schema: str = "schema", *, system_schemas: tuple[str, ...] = ()) -> TableFilters:
    """The filters of a parsed configuration. `schema` is the word that the keys use for what holds tables."""
    lists: dict[str, Any] = {
        f"{name}_{kind}": tuple(raw[f"{key}.{kind}.list"] or ())
        for name, key in (("schema", schema), ("table", "table"), ("column", "column"))
        for kind in ("include", "exclude")
    }
    return TableFilters(**lists, signals=raw["signal.data.collection"] or "", system_schemas=system_schemas)


def _chosen(name: str, include: tuple[str, ...], exclude: tuple[str, ...]) -> bool:
    if include:
        return patterns.matches_any(include, name, ignore_case=True)
    return not patterns.matches_any(exclude, name, ignore_case=True)

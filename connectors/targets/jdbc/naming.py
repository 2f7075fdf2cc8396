"""Which table a record goes to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.record_target import TargetRecord
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.schemas.errors import CdcError

_PLACE: Final = re.compile(r"\$\{([^${}]*)\}")
_PLAIN: Final = ("topic", "schema", "table")
_SOURCE: Final = "source."
_NAMES_MAX: Final = 4_096


class TableName(NamedTuple):
    """A table; the schema is empty where none is named."""

    schema: str
    table: str


def template_problem(text: str) -> str | None:
    """Returns what is wrong with a template of a table's name."""
    for found in _PLACE.finditer(text):
        if found[1] not in _PLAIN and not (found[1].startswith(_SOURCE) and found[1] != _SOURCE):
            return "has a place that cannot be filled; expects ${topic}, ${schema}, ${table} or ${source.NAME}"
    rest = _PLACE.sub("x", text)
    if "${" in rest:
        return "has a place that cannot be filled; expects ${topic}, ${schema}, ${table} or ${source.NAME}"
    parts = rest.split(".")
    return None if all(parts) and len(parts) <= 2 else "expects TABLE or SCHEMA.TABLE"


class TableNames:
    """Names of tables by a template. `dotted`: a topic keeps its dots, of which the last parts schema and table."""

    def __init__(self, template: str, *, dotted: bool) -> None:
        self._template = template
        self._dotted = dotted
        self._asks_source = "${source." in template
        self._known: BoundedCache[str, TableName] = BoundedCache(_NAMES_MAX)

    def of(self, record: TargetRecord) -> TableName | None:
        """Returns the table of a record; None for a tombstone where only the change before it told the table. CdcError of kind `data`
        where the record does not tell."""
        known = self._known.get(record.topic)
        if known is not None:
            return known
        if self._asks_source and record.value is None:
            return None
        made = self._made(record.topic, record.value)
        if not self._asks_source:
            self._known[record.topic] = made
        return made

    def of_topic(self, topic: str) -> TableName | None:
        """Returns the table of a topic's records; None where each record tells its own."""
        return None if self._asks_source else self._made(topic, None)

    def _made(self, topic: str, value: Any) -> TableName:
        parts = topic.split(".")
        plain = {
            "topic": topic if self._dotted else topic.replace(".", "_"),
            "schema": parts[-2] if len(parts) > 1 else "public",
            "table": parts[-1],
        }

        def filled(found: re.Match[str]) -> str:
            return plain[found[1]] if found[1] in plain else _of_source(value, found[1].removeprefix(_SOURCE))

        schema, _, table = _PLACE.sub(filled, self._template).rpartition(".")
        return TableName(schema.rpartition(".")[2], table)


def _of_source(value: Any, name: str) -> str:
    source = value.get("source") if isinstance(value, Mapping) else None
    found = source.get(name) if isinstance(source, Mapping) else None
    if not found or not isinstance(found, str):
        text = "collection.name.format names a field of the source block that the record does not have"
        raise CdcError(RECORD_REFUSED, text, where={"field": f"source.{name}"})
    return found.replace(".", "_")

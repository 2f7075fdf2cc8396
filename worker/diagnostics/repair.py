"""Repairs of what a comparison has found: its rows in batches that a source takes at once, and what of it may be told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.snapshot_jobs import REPAIR_BYTES_MAX, REPAIR_ROWS_MAX, TABLES_MAX, RepairedRows, repair_spec
from cdcworker.schemas.change import JsonObject

ROOM: Final = REPAIR_BYTES_MAX - 4 * 1024
"""Bytes of the keys of one batch; what stands around them has the rest."""
NAMES_BYTES: Final = 60
"""Of a table's entry besides its name and its columns."""
KEY_BYTES_MAX: Final = 16 * 1024
TOO_LONG: Final = "their keys are longer than a repair takes"


class RepairPlan:
    """What is to be repaired after one comparison. The keys stay in this process and in requests to the source."""

    def __init__(self, tables: Sequence[Mapping[str, Any]]) -> None:
        """`tables` as the process that compared has told them (see `connectors.comparison.repair`)."""
        self._tables = [_bounded(table) for table in tables]
        self._batches: list[JsonObject] | None = None

    @property
    def rows(self) -> int:
        return sum(len(table["rows"]) for table in self._tables)

    @property
    def size(self) -> int:
        """Returns about how many bytes its keys are."""
        return sum(_size(key) for table in self._tables for key in table["rows"])

    @property
    def batches(self) -> list[JsonObject]:
        """The requests to the source, which carries out one after the other."""
        if self._batches is None:
            self._batches = [repair_spec(batch) for batch in _batches(self._tables)]
        return self._batches

    def shown(self) -> JsonObject:
        """Returns what may be told: numbers and names, and nothing of the keys."""
        tables = [
            {
                "table": table["table"],
                **{kind: int(count) for kind, count in table["counts"].items()},
                "complete": bool(table["complete"]),
                "refused": [{"rows": item["rows"], "why": item["why"]} for item in table["refused"]],
            }
            for table in self._tables
        ]
        return {"rows": self.rows, "batches": len(self.batches), "tables": tables}


def _bounded(table: Mapping[str, Any]) -> JsonObject:
    """Returns the table without rows whose keys are too long for a request."""
    fits = [key for key in table["rows"] if _size(key) <= KEY_BYTES_MAX]
    long = len(table["rows"]) - len(fits)
    refused = [*table["refused"], *([{"rows": long, "why": TOO_LONG}] if long else [])]
    return {**table, "rows": fits, "refused": refused}


def _batches(tables: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, RepairedRows]]:
    batch: dict[str, RepairedRows] = {}
    rows, size = 0, 0
    for table in tables:
        name, columns = str(table["table"]), table["key"]
        head = _size([name, *columns]) + NAMES_BYTES
        for key in table["rows"]:
            more = _size(key) + (0 if name in batch else head)
            if rows == REPAIR_ROWS_MAX or size + more > ROOM or (name not in batch and len(batch) == TABLES_MAX):
                yield batch
                batch, rows, size, more = {}, 0, 0, _size(key) + head
            batch.setdefault(name, RepairedRows(columns, [], bool(table["deletes"]))).keys.append(key)
            rows, size = rows + 1, size + more
    if batch:
        yield batch


def _size(texts: Sequence[str]) -> int:
    """Returns the bytes of the texts as JSON, with what stands between them and the next."""
    return len(json.dumps(texts)) + 2

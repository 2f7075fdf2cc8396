"""Reads a source's task as the engine does: what it hands on up to each position that it can resume from."""

from __future__ import annotations

import json
import time
from typing import Any, Final

from cdcworker.connectors.api.source import SourceTask
from cdcworker.schemas.change import Change, JsonObject
from cdcworker.worker.conformance.findings import Problem, require

READ_S_MAX: Final = 60.0
Item = tuple[Any, ...]
Step = tuple[list[Item], JsonObject]
"""What a source handed on up to a position that it can resume from."""


def steps(task: SourceTask, count: int, limit_s: float = READ_S_MAX) -> list[Step]:
    """Polls until `count` items have been handed on up to a position. Raises Problem."""
    out: list[Step] = []
    items: list[Item] = []
    deadline = time.monotonic() + limit_s
    while sum(len(found) for found, _ in out) < count:
        if time.monotonic() > deadline:
            raise Problem(f"{sum(len(found) for found, _ in out)} of {count} items were handed on")
        batch = task.poll()
        for change in batch.changes:
            require(isinstance(change, Change), "records are handed on ready only to whom layouts were lent")
            assert isinstance(change, Change)
            items.append((change.position, change.table.path, change.op, change.after))
        items += [(record.topic, record.key, record.value) for record in batch.records]
        if batch.position is not None:
            if items:
                # As it is stored: nothing that JSON changes may be in it.
                out.append((items, json.loads(json.dumps(batch.position))))
            items = []
    return out


def flat(found: list[Step]) -> list[Item]:
    """Returns the items of steps, in their order."""
    return [item for items, _ in found for item in items]

"""What a commit says of itself in a table's log."""

from __future__ import annotations

import time
import uuid
from typing import Any, Final

from cdcworker.connectors.warehouses.lake.delta_files.table_log import TableSnapshot

ENGINE = "cdcworker"


COMPACTION: Final = "OPTIMIZE"


def actions_of(
    before: TableSnapshot, note: str = "", done: tuple[str, int] | None = None, operation: str = ""
) -> list[dict[str, Any]]:
    """Returns the actions that tell of a commit behind a version. `note` is what its user says of it, `done` the number of an
    application's transaction; `operation` is told by these unless it is given."""
    now = time.time_ns() // 1_000_000
    info: dict[str, Any] = {
        "timestamp": now,
        "operation": operation or ("MERGE" if done else "WRITE"),
        "operationParameters": {},
        "readVersion": before.version,
        "isolationLevel": "Serializable",
        "isBlindAppend": done is None and not operation,
        "operationMetrics": {},
        "engineInfo": ENGINE,
        "txnId": str(uuid.uuid4()),
    }
    if note:
        info["userMetadata"] = note
    out: list[dict[str, Any]] = [{"commitInfo": info}]
    if done is not None:
        out.append({"txn": {"appId": done[0], "version": done[1], "lastUpdated": now}})
    return out

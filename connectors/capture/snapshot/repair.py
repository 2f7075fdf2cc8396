"""Loads that repair readers: exactly the rows of given keys are read, and keys without a row are handed on as deleted.

The rows go through the windows of every snapshot. A key of which the read finds no row leaves its window as a row does once
an event of the stream touches it that the read does not see. What is left at the boundary is true there: the deletion stands
behind every older event of its key, and before every newer one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdcworker.connectors.capture.snapshot.load_host import LoadHost
from cdcworker.connectors.capture.snapshot.progress import KeyRange, SnapshotLoad, now_ms
from cdcworker.connectors.snapshot_jobs import repaired_rows
from cdcworker.schemas.errors import CdcError


def repair_load(host: LoadHost, identity: str, spec: Mapping[str, Any]) -> SnapshotLoad:
    """Returns the load of a repair. BadJobRequest or CdcError when it cannot be carried out."""
    wanted = repaired_rows(spec)
    captured = {f"{schema}.{name}": (number, schema, name) for number, schema, name in host.captured()}
    unknown = sorted(wanted.keys() - captured.keys())
    if unknown and not host.is_shared:
        raise CdcError(host.errors.snapshot_refused, "the table is not captured", where={"table": unknown[0]})
    if any(table.repaired for _, table in host.scheduler.progress.tables()):
        # The position holds the keys of one.
        raise CdcError(host.errors.snapshot_refused, "another repair is under way: ask again once it has ended")
    chosen = [captured[name] for name in sorted(wanted.keys() & captured.keys())]
    if not chosen:
        return SnapshotLoad(identity, "request", started_ms=now_ms())
    load = host.new_load(identity, "request", chosen)
    for table in load.tables:
        rows = wanted[table.full_name]
        table.repaired, table.deletes, table.estimate = True, rows.deletes, len(rows.keys)
        table.key, table.parts = list(rows.columns), [KeyRange(ended=True)]
        host.scheduler.again(table, [list(key) for key in rows.keys])
    return load

"""What a task reports of the rows that are read beside its stream."""

from __future__ import annotations

from cdcworker.connectors.capture.snapshot.jobs import SnapshotJobs
from cdcworker.connectors.capture.snapshot.watermark_snapshot import WatermarkSnapshot
from cdcworker.schemas.change import JsonObject


def snapshot_numbers(snapshot: WatermarkSnapshot, jobs: SnapshotJobs) -> JsonObject:
    """Returns the members of the task's numbers."""
    progress = snapshot.progress
    shown = jobs.report(progress)
    left = [job["eta_s"] for job in shown if job.get("eta_s") is not None]
    return {
        "snapshot_rows": progress.rows,
        # Rows of moved keys are read again where the table has been loaded.
        "snapshot_tables_left": sum(len(load.tables) for load in progress.loads if load.origin != "moved"),
        "snapshot_tables_loaded": len(progress.loaded),
        "jobs": shown,
        "snapshot_left_s": max(left, default=None),
        "snapshot_waits_for": snapshot.waits_for,
    }

"""Error codes of coordination."""

from __future__ import annotations

from cdcworker.schemas.errors import declare

WORKER_LOST = declare(
    "coordinator.worker_lost",
    "transient",
    "The worker of this task is gone",
    "Nothing to do: the task is started on another worker as soon as the lost one's lease has lapsed",
)
TASK_CRASHED = declare(
    "coordinator.task_crashed",
    "transient",
    "The task's process ended without naming an error",
    "Look at the worker's log around this time; memory limits of the container are the usual cause",
)
TASK_FENCED = declare(
    "coordinator.task_fenced",
    "fenced",
    "Another process took over this task's transactional id",
    "Nothing to do once; when it repeats, look for a second worker with the same group id and connector name",
)
TASK_QUARANTINED = declare(
    "coordinator.task_quarantined",
    "internal",
    "The task failed too often in too short a time and is not started any more, on no worker",
    "Remove the cause that `cause` names, then restart the task",
)
TASK_START_TIMEOUT = declare(
    "coordinator.task_start_timeout",
    "transient",
    "The task did not come up in its time and was killed",
    "Look at the task's log for what it waits for; task.start.timeout.ms gives it more time",
)
TASK_STUCK = declare(
    "coordinator.task_stuck",
    "environment",
    "The task's process was killed and does not end",
    "Look for a process in state D (a disk or a network file system that does not answer) and restart the worker",
)
OFFSETS_FORMAT = declare(
    "coordinator.offsets_format",
    "config",
    "A record of the offsets log cannot be read",
    "Run the version that wrote it, or reset the connector's offsets on purpose",
)
OTHER_CLUSTER = declare(
    "coordinator.other_cluster",
    "config",
    "Another cluster uses this group id or these topics",
    "Give one of the two clusters another group.id; internal topics belong to one cluster alone.",
)
ENSEMBLE_CHANGED = declare(
    "coordinator.ensemble_changed",
    "config",
    "The ZooKeeper ensemble is not the one that numbered this cluster's claims",
    "Check zookeeper.connect; after a rebuild on purpose name the new identity in coordination.accept.",
)

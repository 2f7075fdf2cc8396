"""The error codes of coordination: lost workers, failed tasks, clusters and versions that do not fit together."""

from __future__ import annotations

from cdcworker.schemas.errors import declare

WORKER_LOST = declare(
    "coordinator.worker_lost",
    "transient",
    "The worker of this task is gone",
    "Nothing to do: the task is started on another worker as soon as the lost one's lease has lapsed",
)
CONNECTION_MISSING = declare(
    "coordinator.connection_missing",
    "config",
    "The connection that the connector names is not there, or its record cannot be read",
    "Create the connection again, or name another one in the connector's config.",
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
RECORD_REFUSED = declare(
    "coordinator.record_refused",
    "data",
    "The record of this connector in the config log cannot be read, so the connector runs nothing",
    "Give the connector its config again and resume it, or delete it; look for who else may write to the config topic",
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
PROTOCOL_TOO_OLD = declare(
    "coordinator.protocol_too_old",
    "config",
    "This version is too old for the workers that are there",
    "Start the version that the others run: workers that run by now cannot share a cluster with an older one.",
)
PEERS_TOO_OLD = declare(
    "coordinator.peers_too_old",
    "config",
    "A worker that is there is too old for this version",
    "Upgrade the older workers first, to a release between theirs and this one.",
)
TASK_WAITS = declare(
    "coordinator.task_waits",
    "transient",
    "The task waits for its worker to come back",
    "Nothing to do: it moves to another worker when the time is up",
)
NO_PLUGIN = declare(
    "coordinator.no_plugin",
    "environment",
    "No live worker has the plugin of this task",
    "Install the plugin on a worker, or correct connector.class",
)
NO_WORKER = declare(
    "coordinator.no_worker",
    "transient",
    "No live worker takes tasks",
    "Start a worker: all that are there are draining",
)
RECORD_TOO_LARGE = declare(
    "coordinator.record_too_large",
    "config",
    "One record of the config log would be too large",
    "Make the connector's config smaller, or split the connector",
)

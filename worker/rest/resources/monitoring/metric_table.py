"""Every metric that a worker shows: the endpoint, the reference, the board and the alert rules are made from this table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cdcworker.connectors.registry.names import metrics_of_connectors
from cdcworker.connectors.telemetry.metric import TASK, Metric

TABLES_MAX: Final = 200
"""Tables per task with series of their own; the rest is summed up under `other`."""
OTHER: Final = "other"

WORKER: Final = (
    Metric(
        "cdc_worker_info", "gauge", "1; the labels say which worker of which version this is.", ("worker", "version")
    ),
    Metric("cdc_worker_ready", "gauge", "1 while the worker has read the cluster's logs and takes tasks."),
    Metric("cdc_worker_draining", "gauge", "1 while the worker hands its tasks over."),
    Metric("cdc_worker_leader", "gauge", "1 while this worker leads the cluster."),
    Metric("cdc_worker_beat_age_seconds", "gauge", "Seconds since the last step of the coordination thread."),
    Metric("cdc_worker_thread_deaths", "counter", "Threads of the worker that an unforeseen error has ended, by thread. A worker is unhealthy until the thread works again.", ("thread",)),
    Metric("cdc_worker_threads_dead", "gauge", "1 for a thread of the worker whose work is not done, since it has died.", ("thread",)),
    Metric("cdc_worker_warnings", "gauge", "Number of warnings about this worker's properties in GET /v1/cluster: what they leave open, such as a cluster without a secret of its workers, or unused."),
    Metric("cdc_worker_records_refused", "counter", "Records of the cluster's own topics that this worker has refused, by log. Only the cluster's workers should write there.", ("log",)),
    Metric("cdc_worker_tasks", "gauge", "Tasks assigned to this worker, by the kind of their connector.", ("kind",)),
)  # fmt: skip
CLUSTER: Final = (
    Metric("cdc_cluster_workers", "gauge", "Workers alive. Cluster metrics are shown by the leader alone."),
    Metric("cdc_cluster_epoch", "gauge", "The leader's epoch; grows with each change of leader."),
    Metric("cdc_cluster_connectors", "gauge", "Connectors, by kind and state.", ("kind", "state")),
    Metric("cdc_cluster_tasks", "gauge", "Tasks, by state.", ("state",)),
    Metric("cdc_cluster_decisions", "counter", "Decisions about who runs what, since the cluster began."),
    Metric("cdc_cluster_moves", "counter", "Tasks that moved while this worker led, by reason.", ("why",)),
    Metric("cdc_cluster_rebalances", "counter", "Decisions that moved tasks while this worker led, by cause.", ("cause",)),
)  # fmt: skip
TASKS: Final = (
    Metric("cdc_task_state", "gauge", "1 for the state that the task is in.", (*TASK, "kind", "state")),
    Metric("cdc_task_error", "gauge", "1 while the task stands still for this error.", (*TASK, "code", "class")),
    Metric("cdc_task_restarts", "gauge", "Restarts that the task's budget is charged with now.", TASK),
    Metric("cdc_task_failures", "counter", "How often a process of the task has failed on this worker, by the class of its error.", (*TASK, "class"), "failures"),
    Metric("cdc_task_retries", "gauge", "Failed tries in a row of a task that is running all the same; absent while there are none.", (*TASK, "code")),
    Metric("cdc_task_retrying_seconds", "gauge", "Seconds since the first of these failed tries.", (*TASK, "code")),
    Metric("cdc_tables_held", "gauge", "Tables that stand still while the others go on: held back by a source, paused by a sink.", TASK, "tables_held"),
    Metric("cdc_task_cpu_cores", "gauge", "Processors in use by the task's processes.", TASK, "cpu_cores"),
    Metric("cdc_task_memory_bytes", "gauge", "Resident memory of the task's processes.", TASK, "rss_bytes"),
)  # fmt: skip
SOURCE: Final = (
    Metric("cdc_source_records", "counter", "Records committed to Kafka since the task began.", TASK, "records"),
    Metric("cdc_source_bytes", "counter", "Bytes of those records.", TASK, "bytes"),
    Metric("cdc_source_events", "counter", "Changes read from the database's log.", TASK, "events"),
    Metric("cdc_source_commits", "counter", "Kafka transactions committed.", TASK, "transactions"),
    Metric("cdc_source_commit_seconds", "counter", "Time spent in committing Kafka transactions.", TASK, "commit_s_total"),
    Metric("cdc_source_commit_max_seconds", "gauge", "The slowest commit of a Kafka transaction.", TASK, "commit_ms_max", 0.001),
    Metric("cdc_source_sessions", "counter", "Connections to the source; more than one: it has been interrupted.", TASK, "sessions"),
    Metric("cdc_source_lag_seconds", "gauge", "Age of the newest commit of the source that is in Kafka.", TASK, "lag_s"),
    Metric("cdc_source_lag_bytes", "gauge", "Log written by the database and not yet confirmed by the source.", TASK, "lag_bytes"),
    Metric("cdc_source_latency_seconds", "histogram", "From the commit of a change in the source until it could be read in Kafka: of every change, but for rows that a snapshot loaded.", TASK, "latency"),
    Metric("cdc_source_stage_seconds", "counter", "Time of the task, by stage: read (with decoding), encode, produce, commit. A source that writes records itself encodes while it reads.", (*TASK, "stage"), "stage_s"),
    Metric("cdc_source_flushes", "counter", "Kafka transactions committed, by reason: idle (nothing more to read), records, bytes, time (limits), large, part (of large transactions), stop, watermark (nothing but how far it is).", (*TASK, "reason"), "flushes"),
    Metric("cdc_source_batch_records", "gauge", "Records of the last Kafka transaction that had any.", TASK, "batch_records"),
    Metric("cdc_source_batch_bytes", "gauge", "Bytes of the last Kafka transaction that had records.", TASK, "batch_bytes"),
    Metric("cdc_source_filtered_records", "counter", "Records that transforms left out, in the Kafka transactions committed, by the transform's name in the config.", (*TASK, "transform"), "filtered_records"),
    Metric("cdc_source_table_records", "counter", "Records committed to Kafka, by table: of the first tables, the rest as `other`.", (*TASK, "table"), "table_records"),
    Metric("cdc_source_table_lag_seconds", "gauge", "From the commit of a table's newest change until it could be read in Kafka; 0 once everything has been read, and never more than what came after it waited.", (*TASK, "table"), "table_lag_s"),
    Metric("cdc_source_table_lag_bytes", "gauge", "An estimate, since nobody knows what a log holds before it is read: cdc_source_lag_bytes, dealt out as the bytes of each table's records were in the last minutes.", (*TASK, "table"), "table_lag_bytes"),
    Metric("cdc_snapshot_rows", "counter", "Rows loaded by snapshots.", TASK, "snapshot_rows"),
    Metric("cdc_snapshot_tables_left", "gauge", "Tables that snapshots have still to load.", TASK, "snapshot_tables_left"),
    Metric("cdc_snapshot_left_seconds", "gauge", "Time until the last snapshot under way is loaded, at its pace now; absent where nobody can tell.", TASK, "snapshot_left_s"),
    Metric("cdc_snapshot_tables_loaded", "gauge", "Tables that are loaded.", TASK, "snapshot_tables_loaded"),
    *metrics_of_connectors(),
)  # fmt: skip
SINK: Final = (
    Metric("cdc_sink_changes", "counter", "Changes read from Kafka and applied.", TASK, "changes"),
    Metric("cdc_sink_rows", "counter", "Rows written to the warehouse: the last change of each key.", TASK, "rows"),
    Metric("cdc_sink_batches", "counter", "Batches committed by the warehouse.", TASK, "batches"),
    Metric("cdc_sink_orphans", "counter", "Changes whose row the warehouse did not have.", TASK, "orphans"),
    Metric("cdc_sink_lag_seconds", "gauge", "Age of the newest change applied; 0 when nothing waits.", TASK, "lag_s"),
    Metric("cdc_sink_lag_records", "gauge", "Records in Kafka that are not applied yet, as many as their offsets make likely.", TASK, "lag_records"),
    Metric("cdc_sink_lag_bytes", "gauge", "Bytes of the records that are not applied yet, at the mean size of the records of the last batches.", TASK, "lag_bytes"),
    Metric("cdc_sink_topic_lag_seconds", "gauge", "The same as cdc_sink_lag_seconds of each topic, which is a table: at most so old is what waits; 0 when nothing does, and absent after a start until something of a topic that lies behind is applied.", (*TASK, "topic"), "topic_lag_s"),
    Metric("cdc_sink_topic_lag_records", "gauge", "Records of a topic that are not applied yet; of the first topics, the rest as `other`.", (*TASK, "topic"), "topic_lag_records"),
    Metric("cdc_sink_topic_lag_bytes", "gauge", "Bytes of these records, at the mean size of the topic's last ones.", (*TASK, "topic"), "topic_lag_bytes"),
    Metric("cdc_sink_latency_seconds", "histogram", "From the commit of a change in the source until it could be read in the warehouse: of every change, but for rows that a snapshot loaded.", TASK, "latency"),
    Metric("cdc_sink_start_seconds", "gauge", "How long the start of Spark took.", TASK, "session_start_s"),
    Metric("cdc_sink_stage_seconds", "gauge", "Time of the last batch, by stage.", (*TASK, "stage"), "batch_ms", 0.001),
    Metric("cdc_sink_flushes", "counter", "Batches committed, by what cut them: trigger (all that waited), records (max.batch.records), bytes (a limit made smaller for large records).", (*TASK, "reason"), "flushes"),
    Metric("cdc_sink_batch_records", "gauge", "Records of the last batch.", TASK, "batch_records"),
    Metric("cdc_sink_dead_letters", "counter", "Records set aside since the task began, since they cannot be decoded.", TASK, "dead_letters"),
    Metric("cdc_sink_table_rows", "counter", "Rows written, by table.", (*TASK, "table"), "tables"),
    Metric("cdc_sink_table_files", "gauge", "Data files of a lake's table after its last maintenance.", (*TASK, "table"), "table_files"),
    Metric("cdc_sink_table_file_bytes", "gauge", "Bytes of these files.", (*TASK, "table"), "table_file_bytes"),
    Metric("cdc_sink_table_delete_files", "gauge", "Delete files, or deletion vectors, of the table, which every reader applies.", (*TASK, "table"), "table_delete_files"),
    Metric("cdc_sink_maintenance_runs", "counter", "Runs of maintenance over a lake's tables.", TASK, "maintenance_runs"),
    Metric("cdc_sink_maintenance_seconds", "counter", "Time of these runs. Batches go on meanwhile.", TASK, "maintenance_s"),
    Metric("cdc_sink_maintenance_rewritten_files", "counter", "Data files that maintenance has put fewer ones in the place of.", TASK, "maintenance_rewritten_files"),
    Metric("cdc_sink_maintenance_rewritten_bytes", "counter", "Bytes of these files.", TASK, "maintenance_rewritten_bytes"),
    Metric("cdc_sink_maintenance_expired_snapshots", "counter", "Snapshots of Iceberg tables, and entries of the log of Delta tables, that were expired.", TASK, "maintenance_expired_snapshots"),
    Metric("cdc_sink_maintenance_removed_files", "counter", "Orphan files that were deleted.", TASK, "maintenance_removed_files"),
    Metric("cdc_sink_maintenance_conflicts", "counter", "Files that maintenance has written in vain, since somebody else had changed their table.", TASK, "maintenance_conflicts"),
    Metric("cdc_sink_maintenance_failures", "counter", "Tables that a run could not maintain, by the code of the error.", (*TASK, "code"), "maintenance_failures"),
)  # fmt: skip
VERIFY: Final = (
    Metric("cdc_verify_result", "gauge", "1 for what the last comparison of a sink with its source said; shown by the leader alone.", ("connector", "result")),
    Metric("cdc_verify_differences", "gauge", "Rows that the last comparison found different.", ("connector",)),
    Metric("cdc_verify_undecided", "gauge", "Rows that it could not decide, since they never stood still.", ("connector",)),
    Metric("cdc_verify_age_seconds", "gauge", "Seconds since the end of the last comparison that came to a result.", ("connector",)),
    Metric("cdc_verify_rows_per_second", "gauge", "How fast it read, on each side.", ("connector",)),
)  # fmt: skip
LETTERS: Final = (
    Metric("cdc_dead_letters_redriven", "counter", "Dead letters that were applied again and are gone, by requests to this worker since it began.", ("connector",)),
)  # fmt: skip
ALL: Final = (*WORKER, *CLUSTER, *TASKS, *SOURCE, *SINK, *VERIFY, *LETTERS)
OF_KIND: Final[Mapping[str, tuple[Metric, ...]]] = {"source": SOURCE, "sink": SINK}

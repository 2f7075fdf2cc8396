"""Grafana's dashboard and Prometheus' alert rules, generated from the table of metrics by `make monitoring`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from cdcworker.worker.rest.resources.monitoring.metric_table import ALL

Json = dict[str, Any]
FOLDER: Final = Path("k8s")
PLACES: Final = ("monitoring", "helm/cdcworker/files")
BOARD: Final = "board.json"
RULES: Final = "rules.yaml"
RUNBOOK: Final = "See docs/troubleshooting.md."
HEAD: Final = "# Made by `make monitoring`.\n"
SERIES: Final = re.compile(r"cdc_[a-z_]+")
WIDTH, HEIGHT, ACROSS = 8, 7, 3


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `queries` maps legends to expressions; `unit` is Grafana's name of the unit."""

    title: str
    help: str
    queries: Mapping[str, str]
    unit: str = "short"
    kind: str = "timeseries"


@dataclass(frozen=True, slots=True)
class PanelRow:
    """A row of panels."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class AlertRule:
    """One alert rule of Prometheus."""

    name: str
    expr: str
    wait: str
    severity: str
    summary: str
    what_to_do: str


def _latency_quantile(metric: str, quantile: float) -> str:
    buckets = f'sum by (le, connector) (rate({metric}_bucket{{connector=~"$connector"}}[$__rate_interval]))'
    return f"histogram_quantile({quantile}, {buckets})"


def _by_task(metric: str, rate: bool = False, by: str = "connector, task") -> str:
    series = f'{metric}{{connector=~"$connector"}}'
    return f"sum by ({by}) (rate({series}[$__rate_interval]))" if rate else f"max by ({by}) ({series})"


TASK_NAME: Final = "{{connector}}-{{task}}"

ROWS: Final = (
    PanelRow(
        "What needs attention",
        (
            Panel("Failed tasks", "Tasks that stand still for an error that does not pass by itself.", {"{{connector}}-{{task}} {{code}}": "max by (connector, task, code) (cdc_task_error)"}, kind="table"),
            Panel("Tasks by state", "Of the whole cluster, as its leader knows it.", {"{{state}}": "max by (state) (cdc_cluster_tasks)"}),
            Panel("Retrying tasks", "Seconds since the first failed try of a task that still runs, and the number of tries.", {
                f"{TASK_NAME} {{{{code}}}}": _by_task("cdc_task_retrying_seconds", by="connector, task, code"),
                f"{TASK_NAME} tries": _by_task("cdc_task_retries"),
            }),
            Panel("Time until unread binary log is removed", "By the server, by its age, while a source of MySQL or MariaDB is behind.", {TASK_NAME: _by_task("cdc_binlog_expires_in_seconds")}, "s"),
            Panel("Time until the slot is lost", "Time until the database gives up a slot, if its log goes on growing as it does.", {TASK_NAME: _by_task("cdc_slot_lost_in_seconds")}, "s"),
        ),
    ),
    PanelRow(
        "Lag",
        (
            Panel("Source lag", "Age of the newest commit of the source that is in Kafka.", {TASK_NAME: _by_task("cdc_source_lag_seconds")}, "s"),
            Panel("Source lag by table", "Of each table's newest change, when it could be read in Kafka.", {"{{connector}} {{table}}": _by_task("cdc_source_table_lag_seconds", by="connector, table")}, "s"),
            Panel("Source lag in bytes by table", "An estimate: the log not confirmed, dealt out as the bytes of the tables' records.", {"{{connector}} {{table}}": _by_task("cdc_source_table_lag_bytes", by="connector, table")}, "bytes"),
            Panel("Source lag in transactions", "In the log of MySQL or MariaDB and not yet read.", {TASK_NAME: _by_task("cdc_source_lag_transactions")}),
            Panel("Sink lag", "Age of the newest change in the warehouse; 0 when nothing waits.", {TASK_NAME: _by_task("cdc_sink_lag_seconds")}, "s"),
            Panel("Sink lag in records and bytes", "In Kafka and not yet in the warehouse.", {
                f"{TASK_NAME} records": _by_task("cdc_sink_lag_records"),
                f"{TASK_NAME} bytes": _by_task("cdc_sink_lag_bytes"),
            }),
            Panel("Sink lag by topic", "Upper bound of the age of what waits.", {"{{connector}} {{topic}}": _by_task("cdc_sink_topic_lag_seconds", by="connector, topic")}, "s"),
            Panel("Records not applied by topic", "In Kafka and not yet in the warehouse.", {"{{connector}} {{topic}}": _by_task("cdc_sink_topic_lag_records", by="connector, topic")}),
            Panel("Bytes not applied by topic", "At the mean size of the last records.", {"{{connector}} {{topic}}": _by_task("cdc_sink_topic_lag_bytes", by="connector, topic")}, "bytes"),
            Panel("Commit to Kafka and to the warehouse", "From the commit of each change until it can be read.", {
                "{{connector}} Kafka p50": _latency_quantile("cdc_source_latency_seconds", 0.5),
                "{{connector}} Kafka p99": _latency_quantile("cdc_source_latency_seconds", 0.99),
                "{{connector}} warehouse p50": _latency_quantile("cdc_sink_latency_seconds", 0.5),
                "{{connector}} warehouse p99": _latency_quantile("cdc_sink_latency_seconds", 0.99),
            }, "s"),
        ),
    ),
    PanelRow(
        "Throughput",
        (
            Panel("Records to Kafka", "Per second.", {TASK_NAME: _by_task("cdc_source_records_total", rate=True)}, "ops"),
            Panel("Bytes to Kafka", "Per second.", {TASK_NAME: _by_task("cdc_source_bytes_total", rate=True)}, "Bps"),
            Panel("Changes applied", "Per second, and rows written for them.", {
                f"{TASK_NAME} changes": _by_task("cdc_sink_changes_total", rate=True),
                f"{TASK_NAME} rows": _by_task("cdc_sink_rows_total", rate=True),
            }, "ops"),
            Panel("Rows by table", "Written to the warehouse, per second.", {"{{table}}": _by_task("cdc_sink_table_rows_total", rate=True, by="table")}, "ops"),
            Panel("Kafka transactions", "Committed per second.", {TASK_NAME: _by_task("cdc_source_commits_total", rate=True)}, "ops"),
            Panel("Time of a commit", "Mean and the slowest.", {
                f"{TASK_NAME} mean": f"{_by_task('cdc_source_commit_seconds_total', rate=True)} / {_by_task('cdc_source_commits_total', rate=True)}",
                f"{TASK_NAME} max": _by_task("cdc_source_commit_max_seconds"),
            }, "s"),
            Panel("Events read", "Changes in the database's log, per second.", {TASK_NAME: _by_task("cdc_source_events_total", rate=True)}, "ops"),
            Panel("Where a source's time goes", "Share of each stage; what is missing to 1 is waiting.", {f"{TASK_NAME} {{{{stage}}}}": _by_task("cdc_source_stage_seconds_total", rate=True, by="connector, task, stage")}),
            Panel("Why transactions are committed", "Per second: idle, or a limit that was reached.", {f"{TASK_NAME} {{{{reason}}}}": _by_task("cdc_source_flushes_total", rate=True, by="connector, task, reason")}, "ops"),
            Panel("Size of transactions and batches", "Records of the last one.", {
                f"{TASK_NAME} to Kafka": _by_task("cdc_source_batch_records"),
                f"{TASK_NAME} to the warehouse": _by_task("cdc_sink_batch_records"),
            }),
            Panel("Bytes of a transaction", "Of the last one to Kafka.", {TASK_NAME: _by_task("cdc_source_batch_bytes")}, "bytes"),
            Panel("Records by table", "To Kafka, per second.", {"{{table}}": _by_task("cdc_source_table_records_total", rate=True, by="table")}, "ops"),
            Panel("Records left out by transforms", "Per second.", {f"{TASK_NAME} {{{{transform}}}}": _by_task("cdc_source_filtered_records_total", rate=True, by="connector, task, transform")}, "ops"),
            Panel("Dead letters", "Records that cannot be decoded, set aside; and those that were applied again.", {
                TASK_NAME: _by_task("cdc_sink_dead_letters_total"),
                "{{connector}} applied again": _by_task("cdc_dead_letters_redriven_total", by="connector"),
            }),
            Panel("Batches of sinks", "Committed per second.", {TASK_NAME: _by_task("cdc_sink_batches_total", rate=True)}, "ops"),
            Panel("What cuts batches", "Per second: the trigger, or a limit that was reached.", {f"{TASK_NAME} {{{{reason}}}}": _by_task("cdc_sink_flushes_total", rate=True, by="connector, task, reason")}, "ops"),
            Panel("Stages of a batch", "Of the last batch.", {"{{connector}}-{{task}} {{stage}}": _by_task("cdc_sink_stage_seconds", by="connector, task, stage")}, "s"),
        ),
    ),
    PanelRow(
        "Slots and snapshots",
        (
            Panel("WAL retained by slots", "On the database's disk.", {TASK_NAME: _by_task("cdc_slot_retained_bytes")}, "bytes"),
            Panel("Log not confirmed", "Written by the database and not yet safe in Kafka.", {TASK_NAME: _by_task("cdc_source_lag_bytes")}, "bytes"),
            Panel("Log until a slot is lost", "With max_slot_wal_keep_size.", {TASK_NAME: _by_task("cdc_slot_safe_bytes")}, "bytes"),
            Panel("Binary log", "Of MySQL or MariaDB, in all its files.", {TASK_NAME: _by_task("cdc_binlog_bytes")}, "bytes"),
            Panel("Slots on standbys", "1: standbys keep the slot and are waited for.", {TASK_NAME: _by_task("cdc_slot_failover_ready")}),
            Panel("Snapshot rows", "Loaded per second.", {TASK_NAME: _by_task("cdc_snapshot_rows_total", rate=True)}, "ops"),
            Panel("Time until snapshots are done", "At their present rate.", {TASK_NAME: _by_task("cdc_snapshot_left_seconds")}, "s"),
            Panel("Tables", "Left to load, loaded, and held back.", {
                f"{TASK_NAME} left": _by_task("cdc_snapshot_tables_left"),
                f"{TASK_NAME} loaded": _by_task("cdc_snapshot_tables_loaded"),
                f"{TASK_NAME} held back": _by_task("cdc_tables_held"),
            }),
            Panel("Orphans", "Changes whose row the warehouse did not have.", {TASK_NAME: _by_task("cdc_sink_orphans_total", rate=True)}, "ops"),
        ),
    ),
    PanelRow(
        "Tables of lakes",
        (
            Panel("Files by table", "Data files after the last maintenance, and what readers apply to them.", {
                "{{table}} files": _by_task("cdc_sink_table_files", by="table"),
                "{{table}} deletes": _by_task("cdc_sink_table_delete_files", by="table"),
            }),
            Panel("Bytes by table", "Of the data files.", {"{{table}}": _by_task("cdc_sink_table_file_bytes", by="table")}, "bytes"),
            Panel("Compaction", "Bytes of files that were written again, per second.", {TASK_NAME: _by_task("cdc_sink_maintenance_rewritten_bytes_total", rate=True)}, "Bps"),
            Panel("Maintenance", "Runs, and what they have done.", {
                f"{TASK_NAME} runs": _by_task("cdc_sink_maintenance_runs_total"),
                f"{TASK_NAME} files rewritten": _by_task("cdc_sink_maintenance_rewritten_files_total"),
                f"{TASK_NAME} snapshots expired": _by_task("cdc_sink_maintenance_expired_snapshots_total"),
                f"{TASK_NAME} files removed": _by_task("cdc_sink_maintenance_removed_files_total"),
            }),
            Panel("Share of the time in maintenance", "Of one thread beside the batches.", {TASK_NAME: _by_task("cdc_sink_maintenance_seconds_total", rate=True)}),
            Panel("Maintenance that failed", "Tables by error, and conflicts with other writers.", {
                f"{TASK_NAME} {{{{code}}}}": _by_task("cdc_sink_maintenance_failures_total", by="connector, task, code"),
                f"{TASK_NAME} conflicts": _by_task("cdc_sink_maintenance_conflicts_total"),
            }),
        ),
    ),
    PanelRow(
        "Source and warehouse compared",
        (
            Panel("Last comparison", "equal, different, undecided, impossible or failed.", {"{{connector}} {{result}}": _by_task("cdc_verify_result", by="connector, result")}, kind="table"),
            Panel("Rows that differ", "And those that never stood still.", {
                "{{connector}} different": _by_task("cdc_verify_differences", by="connector"),
                "{{connector}} undecided": _by_task("cdc_verify_undecided", by="connector"),
            }),
            Panel("Age and speed of the last comparison", "Seconds, and rows per second on each side.", {
                "{{connector}} age": _by_task("cdc_verify_age_seconds", by="connector"),
                "{{connector}} rows/s": _by_task("cdc_verify_rows_per_second", by="connector"),
            }),
        ),
    ),
    PanelRow(
        "The cluster",
        (
            Panel("Workers", "Alive, as the leader knows them, and those that say that they are ready.", {
                "alive": "max(cdc_cluster_workers)", "ready": "sum(cdc_worker_ready)", "draining": "sum(cdc_worker_draining)",
            }),
            Panel("Leader's epoch", "It grows with each change of leader. `leaders` must be 1.", {
                "epoch": "max(cdc_cluster_epoch)", "leaders": "sum(cdc_worker_leader)",
            }),
            Panel("Moves", "Tasks that moved, by reason, and decisions.", {
                "{{why}}": "sum by (why) (increase(cdc_cluster_moves_total[$__rate_interval]))",
                "decisions": "max(increase(cdc_cluster_decisions_total[$__rate_interval]))",
                "rebalances {{cause}}": "sum by (cause) (increase(cdc_cluster_rebalances_total[$__rate_interval]))",
            }),
            Panel("Tasks of a worker", "By kind.", {"{{instance}} {{kind}}": "max by (instance, kind) (cdc_worker_tasks)"}),
            Panel("Connectors", "By kind and wanted state.", {"{{kind}} {{state}}": "max by (kind, state) (cdc_cluster_connectors)"}),
            Panel("Age of the coordination thread's last step", "Of each worker.", {"{{instance}}": "max by (instance) (cdc_worker_beat_age_seconds)"}, "s"),
            Panel("Memory", "Of each task with all that it has started.", {TASK_NAME: _by_task("cdc_task_memory_bytes")}, "bytes"),
            Panel("Processors", "In use by each task.", {TASK_NAME: _by_task("cdc_task_cpu_cores")}),
            Panel("Restarts and interruptions", "Restarts that count against the task's budget, and connections that the source has opened.", {
                f"{TASK_NAME} restarts": _by_task("cdc_task_restarts"),
                f"{TASK_NAME} sessions": _by_task("cdc_source_sessions_total"),
            }),
            Panel("Failures", "Of tasks' processes within five minutes, by the class of the error.", {f"{TASK_NAME} {{{{class}}}}": 'sum by (connector, task, class) (increase(cdc_task_failures_total{connector=~"$connector"}[5m]))'}),
            Panel("Start of Spark", "Seconds from a sink's start to its first batch.", {TASK_NAME: _by_task("cdc_sink_start_seconds")}, "s"),
            Panel("Where tasks run", "Worker and state of each task.", {"{{instance}} {{connector}}-{{task}} {{state}}": "max by (instance, connector, task, state) (cdc_task_state)"}, kind="table"),
            Panel("Dead threads", "Threads that have ended by an error: those that are dead now, and all since the start.", {"{{instance}} dead": "max by (instance) (cdc_worker_threads_dead)", "{{instance}} in all": "max by (instance) (cdc_worker_thread_deaths_total)"}),
            Panel("Records refused", "Records of the cluster's topics that could not be read.", {"{{instance}}": "sum by (instance) (cdc_worker_records_refused_total)"}),
            Panel("Warnings", "What the workers' properties leave open or unused; GET /v1/cluster says what.", {"{{instance}}": "cdc_worker_warnings"}),
            Panel("Versions", "Version of each worker.", {"{{worker}} {{version}}": "max by (worker, version) (cdc_worker_info)"}, kind="table"),
        ),
    ),
)  # fmt: skip

ALERTS: Final = (
    AlertRule("CdcTaskFailed", "max by (connector, task, code) (cdc_task_error) > 0", "1m", "critical", "Task {{ $labels.connector }}-{{ $labels.task }} stands still: {{ $labels.code }}", "cdcworker errors {{ $labels.code }}; then cdcworker connector restart {{ $labels.connector }} --failed"),
    AlertRule("CdcTaskRetries", "max by (connector, task) (cdc_task_retrying_seconds) > 300", "1m", "warning", "{{ $labels.connector }}-{{ $labels.task }} has tried again and again for {{ $value | humanizeDuration }}", "cdcworker connector status {{ $labels.connector }} names the code: what it connects to is away."),
    AlertRule("CdcTaskUnassigned", 'max(cdc_cluster_tasks{state="UNASSIGNED"}) > 0', "2m", "critical", "{{ $value }} tasks run nowhere", "cdcworker cluster journal tells why; are there workers with the plugin and room?"),
    AlertRule("CdcNoLeader", "sum(cdc_worker_leader) == 0", "1m", "critical", "No worker leads the cluster: nothing can be changed, lost tasks stay lost", "Look at the workers' logs and at Kafka."),
    AlertRule("CdcWorkerSilent", "cdc_worker_beat_age_seconds > 10", "1m", "warning", "The coordination thread of {{ $labels.instance }} is silent", "Its liveness probe restarts it after a minute."),
    AlertRule("CdcWorkerNotReady", "cdc_worker_ready == 0", "5m", "warning", "{{ $labels.instance }} takes no tasks", "cdcworker doctor on that machine; look at its log."),
    AlertRule("CdcSourceLag", "max by (connector, task) (cdc_source_lag_seconds) > 60", "5m", "warning", "{{ $labels.connector }}-{{ $labels.task }} is {{ $value }} s behind its database", "cdcworker doctor {{ $labels.connector }}"),
    AlertRule("CdcSinkLag", "max by (connector, task) (cdc_sink_lag_seconds) > 300", "5m", "warning", "{{ $labels.connector }}-{{ $labels.task }} is {{ $value }} s behind", "Is the warehouse slow or locked? The stages of a batch tell where the time goes."),
    AlertRule("CdcSlotRetained", "max by (connector, task) (cdc_slot_retained_bytes) > 20e9", "10m", "warning", "The database keeps {{ $value | humanize1024 }}B of log for {{ $labels.connector }}-{{ $labels.task }}", "cdcworker doctor {{ $labels.connector }}: a long transaction, a task that stands still, or a slot that nobody reads"),
    AlertRule("CdcSlotSoonLost", "min by (connector, task) (cdc_slot_lost_in_seconds) < 3600", "1m", "critical", "The slot of {{ $labels.connector }}-{{ $labels.task }} is lost within {{ $value | humanizeDuration }}", "Raise max_slot_wal_keep_size, or let the task catch up now."),
    AlertRule("CdcBinlogSoonRemoved", "min by (connector, task) (cdc_binlog_expires_in_seconds) < 3600", "1m", "critical", "The server removes binary log that {{ $labels.connector }}-{{ $labels.task }} has not read within {{ $value | humanizeDuration }}", "Raise binlog_expire_logs_seconds at the server, or let the task catch up now."),
    AlertRule("CdcDeadLetters", "max by (connector, task) (increase(cdc_sink_dead_letters_total[10m])) > 0", "0m", "warning", "{{ $labels.connector }}-{{ $labels.task }} has set records aside", "cdcworker dead-letters {{ $labels.connector }} says where each record stood and why; --redrive applies them again."),
    AlertRule("CdcTablesHeld", "max by (connector, task) (cdc_tables_held) > 0", "1m", "warning", "{{ $value }} tables of {{ $labels.connector }}-{{ $labels.task }} are held back", "cdcworker connector describe {{ $labels.connector }} names them with the cause."),
    AlertRule("CdcTaskRestarts", "max by (connector, task) (cdc_task_restarts) >= 5", "1m", "warning", "{{ $labels.connector }}-{{ $labels.task }} has been restarted {{ $value }} times", "At the end of its budget it is quarantined: cdcworker connector describe {{ $labels.connector }}"),
    AlertRule("CdcWarehouseDiffers", 'max by (connector) (cdc_verify_result{result="different"}) > 0', "0m", "critical", "The warehouse of {{ $labels.connector }} does not hold what its source holds", "cdcworker verify {{ $labels.connector }} --last, and --show-keys for the rows"),
    AlertRule("CdcTasksMove", "sum(increase(cdc_cluster_moves_total[10m])) > 50", "0m", "warning", "{{ $value }} tasks moved within ten minutes", "cdcworker cluster journal tells why."),
)  # fmt: skip


def board() -> Json:
    """Returns the dashboard as Grafana's JSON."""
    panels: list[Json] = []
    top = 0
    for row in ROWS:
        panels.append({"type": "row", "title": row.title, "gridPos": {"h": 1, "w": 24, "x": 0, "y": top}, "panels": []})
        top += 1
        for number, panel in enumerate(row.panels):
            place = {"h": HEIGHT, "w": WIDTH, "x": WIDTH * (number % ACROSS), "y": top + HEIGHT * (number // ACROSS)}
            panels.append(_panel(panel, place))
        top += HEIGHT * -(-len(row.panels) // ACROSS)
    for number, panel_json in enumerate(panels, 1):
        panel_json["id"] = number
    return {
        "uid": "cdcworker",
        "title": "cdcworker",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_variable("datasource"), _variable("connector")]},
        "panels": panels,
    }


def _variable(name: str) -> Json:
    if name == "datasource":
        return {"name": name, "type": "datasource", "query": "prometheus"}
    source = {"type": "prometheus", "uid": "$datasource"}
    query = "label_values(cdc_task_state, connector)"
    return {"name": name, "type": "query", "datasource": source, "query": query, "multi": True, "includeAll": True,
            "allValue": ".*", "refresh": 2, "current": {"text": "All", "value": "$__all"}}  # fmt: skip


def _panel(panel: Panel, place: Json) -> Json:
    is_table = panel.kind == "table"
    source = {"type": "prometheus", "uid": "$datasource"}
    targets = [
        {"refId": chr(65 + number), "expr": expr, "legendFormat": legend, "datasource": source}
        | ({"format": "table", "instant": True} if is_table else {})
        for number, (legend, expr) in enumerate(panel.queries.items())
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def rules() -> Json:
    """Returns a PrometheusRule; its `spec` is the content of a rule file of Prometheus."""
    entries = [
        {
            "alert": alert.name,
            "expr": alert.expr,
            "for": alert.wait,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "description": f"{alert.what_to_do.rstrip('.')}. {RUNBOOK}"},
        }
        for alert in ALERTS
    ]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "cdcworker", "labels": {"app.kubernetes.io/name": "cdcworker"}},
        "spec": {"groups": [{"name": "cdcworker", "rules": entries}]},
    }


def expressions() -> list[str]:
    """Returns every expression of the dashboard and of the rules."""
    shown = [expr for row in ROWS for panel in row.panels for expr in panel.queries.values()]
    return [*shown, *(alert.expr for alert in ALERTS)]


def series(expression: str) -> set[str]:
    """Returns the metrics that an expression names, by their names in the table of metrics."""
    names = {metric.shown: metric.name for metric in ALL}
    names |= {f"{metric.name}_bucket": metric.name for metric in ALL if metric.kind == "histogram"}
    return {names.get(found, f"unknown: {found}") for found in SERIES.findall(expression)}


def files() -> dict[str, str]:
    """Returns the files of the Kustomize component and of the Helm chart, whose template makes the object around the
    rules."""
    board_text, entries, (component, chart) = json.dumps(board(), indent=1) + "\n", rules(), PLACES
    return {
        f"{component}/{BOARD}": board_text,
        f"{component}/{RULES}": HEAD + yaml.safe_dump(entries, sort_keys=False, width=120),
        f"{chart}/{BOARD}": board_text,
        f"{chart}/{RULES}": HEAD + yaml.safe_dump(entries["spec"], sort_keys=False, width=120),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write Grafana's board and Prometheus' alert rules.")
    parser.add_argument("folder", nargs="?", default=FOLDER, type=Path)
    folder = parser.parse_args(arguments).folder
    for name, text in files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

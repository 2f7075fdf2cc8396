"""Metrics under the names that dashboards for Kafka Connect and Debezium query, filled from our own metrics.

The names are those that the usual rules of the JMX exporter make: Strimzi's for `kafka_connect_*`, and Debezium's
monitoring example for `debezium_metrics_*`. The latter are shown both as they are and in lower case, as the exporter
can be configured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from cdcworker.connectors.registry.names import lookup
from cdcworker.coordinator.model import View
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.resources.monitoring.metrics import OPEN_METRICS, TEXT, Labels, Values, answer, family
from cdcworker.worker.rest.routing import Endpoint
from starlette.requests import Request
from starlette.responses import Response

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

Form = Literal["task", "streaming", "snapshot", "worker"]
LABELS: Final[dict[Form, tuple[str, ...]]] = {
    "task": ("connector", "task"),
    "streaming": ("context", "name", "plugin"),
    "snapshot": ("context", "name", "plugin"),
    "worker": (),
}
PREFIX_KEYS: Final = ("topic.prefix", "database.server.name")
STATES: Final = {"RUNNING": "running", "PAUSED": "paused", "FAILED": "failed", "UNASSIGNED": "unassigned"}


@dataclass(frozen=True, slots=True)
class CompatMetric:
    """Shows our metric `of`, times `scale`. Several of ours under the same labels are added up."""

    name: str
    of: str
    form: Form
    scale: float = 1.0


def _task(kind: str, name: str, of: str) -> CompatMetric:
    return CompatMetric(f"kafka_connect_{kind}_task_{name}", of, "task")


def _debezium(name: str, of: str, form: Form = "streaming", scale: float = 1.0) -> CompatMetric:
    return CompatMetric(f"debezium_metrics_{name}", of, form, scale)


NAMES: Final = (
    CompatMetric("kafka_connect_worker_task_count", "cdc_worker_tasks", "worker"),
    _task("source", "source_record_write_total", "cdc_source_records"),
    _task("source", "source_record_poll_total", "cdc_source_events"),
    _task("sink", "sink_record_read_total", "cdc_sink_changes"),
    _task("sink", "sink_record_send_total", "cdc_sink_changes"),
    _task("sink", "offset_commit_completion_total", "cdc_sink_batches"),
    _debezium("MilliSecondsBehindSource", "cdc_source_lag_seconds", scale=1000.0),
    _debezium("TotalNumberOfEventsSeen", "cdc_source_events"),
    _debezium("NumberOfCommittedTransactions", "cdc_source_commits"),
    _debezium("RemainingTableCount", "cdc_snapshot_tables_left", "snapshot"),
    _debezium("TotalNumberOfEventsSeen", "cdc_snapshot_rows", "snapshot"),
)


def families(values: Values, view: View) -> Iterator[Family]:
    yield from _statuses(values, view)
    shown: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
    forms: dict[str, Form] = {}
    for name in NAMES:
        forms[name.name] = name.form
        for labels, value in values[name.of].items():
            shown[name.name][_labels(name.form, labels, view)] += value * name.scale
    for title, series in shown.items():
        for spelt in dict.fromkeys((title, title.lower())):
            yield family(_kind(spelt), spelt.removesuffix("_total"), "See /metrics.", LABELS[forms[title]], series)


def _statuses(values: Values, view: View) -> Iterable[Family]:
    """Returns the families of states: as the exporter shows text, a 1 under the label that names the state."""
    tasks: dict[Labels, Any] = {}
    connected: dict[Labels, Any] = {}
    for connector, task, kind, state in values["cdc_task_state"]:
        tasks[connector, task, STATES.get(state, state.lower())] = 1
        if kind == "source":
            connected[_labels("streaming", (connector, task), view)] = float(state == "RUNNING")
    yield family("gauge", "kafka_connect_connector_status", "See /metrics.", ("connector", "task", "status"), tasks)
    for spelt in ("debezium_metrics_Connected", "debezium_metrics_connected"):
        yield family("gauge", spelt, "See /metrics.", LABELS["streaming"], connected)
    count: dict[Labels, float] = {(): float(len({labels[0] for labels in values["cdc_task_state"]}))}
    yield family("gauge", "kafka_connect_worker_connector_count", "See /metrics.", (), count)


def _labels(form: Form, labels: Labels, view: View) -> Labels:
    if form == "worker":
        return ()
    if form == "task":
        return labels[:2]
    connector = view.state.connectors.get(labels[0])
    config = connector.config if connector else {}
    return form, next((config[key] for key in PREFIX_KEYS if config.get(key)), labels[0]), _plugin(config)


def _plugin(config: Mapping[str, str]) -> str:
    """Returns the name of the source as Debezium's JMX domain has it, `debezium.NAME`; empty for a class that is not known here."""
    try:
        return lookup(config.get("connector.class", "")).name
    except CdcError:
        return ""


def _kind(name: str) -> Literal["gauge", "counter"]:
    return "counter" if name.endswith("_total") else "gauge"


async def compat(api: ApiContext, request: Request) -> Response:
    """The metrics of `/metrics` under the names that dashboards for Kafka Connect and Debezium query."""
    return await answer(api, request, families, process=False)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/metrics/connect",
        compat,
        "Metrics under the names of Kafka Connect's and Debezium's exporters",
        "worker",
        produces=TEXT,
        also=OPEN_METRICS,
        role="read",
        whose="each",
        needs_cluster=False,
    ),
)

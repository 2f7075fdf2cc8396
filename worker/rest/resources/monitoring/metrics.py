"""`/metrics`: this worker and its tasks in Prometheus' text format; only the leader shows metrics of the whole cluster."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.telemetry.latency import BOUNDS_S
from cdcworker.connectors.telemetry.metric import Kind, Metric
from cdcworker.coordinator.log.task_metrics import RETRYING
from cdcworker.coordinator.model import TaskId, View
from cdcworker.worker.rest import connect_json
from cdcworker.worker.rest.context import ApiContext
from cdcworker.worker.rest.rebalance_counts import RebalanceCounts
from cdcworker.worker.rest.resources.monitoring.metric_table import ALL, OF_KIND, OTHER, TABLES_MAX, TASKS
from cdcworker.worker.rest.resources.targets.verify import record_of
from cdcworker.worker.rest.routing import Endpoint
from cdcworker.worker.rest.settings import ApiSettings
from cdcworker.worker.security.access import sees_all, visible
from starlette.requests import Request
from starlette.responses import Response

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

TEXT = "text/plain"
OPEN_METRICS = "application/openmetrics-text"
Labels = tuple[str, ...]
STEPS = len(BOUNDS_S) + 1
Values = dict[str, dict[Labels, Any]]
"""The value of each metric by the values of its labels: a number, or a histogram as a task reports it."""


def values(
    view: View,
    rebalances: RebalanceCounts,
    is_visible: Callable[[str], bool],
    *,
    sees_cluster: bool = True,
    redriven: Mapping[str, int] | None = None,
    unassigned: Mapping[TaskId, Mapping[str, Any]] | None = None,
) -> Values:
    """Returns the values of all metrics. `is_visible` says which connectors the caller may see; `sees_cluster` whether
    it may see the metrics of the cluster; `unassigned` has what was measured of tasks that no worker runs."""
    out: Values = {metric.name: {} for metric in ALL}
    out["cdc_dead_letters_redriven"] = {(name,): count for name, count in (redriven or {}).items() if is_visible(name)}
    _worker(out, view)
    if view.is_leader and sees_cluster:
        _cluster(out, view, rebalances)
    if view.is_leader:
        _verified(out, view, is_visible)
    owners = connect_json.task_owners(view)
    for task, owner in owners.items():
        if owner.worker_id == view.worker_id and is_visible(task.connector):
            _task(out, view, task, owners)
    if view.is_leader:
        for task, numbers in (unassigned or {}).items():
            if task not in owners and is_visible(task.connector):
                _shown(out, OF_KIND.get(_kind(view, task.connector), ()), task, numbers)
    return out


def _worker(out: Values, view: View) -> None:
    out["cdc_worker_info"][view.worker_id, version("cdcworker")] = 1
    for name, number in (
        ("ready", view.ready),
        ("draining", view.draining),
        ("leader", view.is_leader),
        ("beat_age_seconds", view.last_tick_age_s),
    ):
        out[f"cdc_worker_{name}"][()] = float(number)
    assignment = view.state.assignments.get(view.worker_id)
    kinds = Counter(_kind(view, entry.connector) for entry in (assignment.tasks if assignment else ()))
    out["cdc_worker_tasks"] = {(kind,): kinds[kind] for kind in ("source", "sink")}


def _process(settings: ApiSettings) -> Values:
    """Returns what this process tells of its own threads, its properties and the records that it has refused."""
    return {
        "cdc_worker_thread_deaths": {(name,): count for name, count in settings.threads.counts().items()},
        "cdc_worker_threads_dead": {(name,): 1 for name in settings.threads.dead()},
        "cdc_worker_warnings": {(): len(settings.warnings)},
        "cdc_worker_records_refused": {(name,): count for name, count in settings.refusals.counts().items()},
    }


def _cluster(out: Values, view: View, rebalances: RebalanceCounts) -> None:
    state = view.state
    out["cdc_cluster_workers"][()] = len(view.workers)
    out["cdc_cluster_epoch"][()] = state.leader.epoch if state.leader else 0
    out["cdc_cluster_decisions"][()] = max((entry.seq for entry in state.journal.values()), default=0)
    out["cdc_cluster_moves"] = {(why,): count for why, count in rebalances.counts.items()}
    out["cdc_cluster_rebalances"] = {(cause,): count for cause, count in rebalances.causes.items() if count}
    connectors: Counter[Labels] = Counter()
    tasks: Counter[Labels] = Counter()
    owners = connect_json.task_owners(view)
    for connector in state.connectors.values():
        connectors[connector.kind, connect_json.connector_own_state(view, connector)[0]] += 1
    for task in connect_json.task_ids(view):
        tasks[(connect_json.task_state(view, task, owners)["state"],)] += 1
    out["cdc_cluster_connectors"], out["cdc_cluster_tasks"] = dict(connectors), dict(tasks)


def _verified(out: Values, view: View, is_visible: Callable[[str], bool]) -> None:
    for name, connector in view.state.connectors.items():
        record = record_of(view, connector) if is_visible(name) else None
        if record is None or record.get("state") == "running":
            continue
        result = record.get("result")
        if not isinstance(result, dict):
            out["cdc_verify_result"][name, "failed"] = 1
            continue
        out["cdc_verify_result"][name, str(result.get("verdict"))] = 1
        numbers = [result.get(key) for key in ("differences", "undecided", "rows_per_s")]
        if all(map(_is_number, (*numbers, record.get("ended")))):
            out["cdc_verify_differences"][name,], out["cdc_verify_undecided"][name,] = numbers[:2]
            out["cdc_verify_rows_per_second"][name,] = numbers[2]
            out["cdc_verify_age_seconds"][name,] = max(0.0, time.time() - record["ended"] / 1000)


def _task(out: Values, view: View, task: TaskId, owners: Mapping[TaskId, Any]) -> None:
    kind, labels = _kind(view, task.connector), (task.connector, str(task.task))
    state = connect_json.task_state(view, task, owners)
    status = connect_json.reported(view, owners[task])
    out["cdc_task_state"][*labels, kind, state["state"]] = 1
    error = state.get("error")
    if error:
        out["cdc_task_error"][*labels, str(error.get("code", "")), str(error.get("kind", ""))] = 1
    if tries := state.get(RETRYING):
        why = (*labels, str(tries["code"]))
        out["cdc_task_retries"][why] = tries["count"]
        out["cdc_task_retrying_seconds"][why] = max(0.0, time.time() - tries["since_ms"] / 1000)
    if status is None:
        return
    out["cdc_task_restarts"][labels] = len(status.restarts)
    _shown(out, (*TASKS, *OF_KIND.get(kind, ())), task, status.metrics)


def _shown(out: Values, metrics: Iterable[Metric], task: TaskId, numbers: Mapping[str, Any]) -> None:
    for metric in metrics:
        if metric.key and metric.key in numbers:
            labels = (task.connector, str(task.task))
            out[metric.name].update(_reported(metric, labels, numbers[metric.key]))


def _reported(metric: Metric, labels: Labels, value: Any) -> Iterator[tuple[Labels, Any]]:
    if metric.kind == "histogram":
        counts = value.get("counts") if isinstance(value, dict) else None
        if isinstance(counts, list) and len(counts) == STEPS and all(map(_is_number, (*counts, value.get("sum_s")))):
            yield labels, value
    elif isinstance(value, dict):
        numbers = {str(name): number for name, number in value.items() if _is_number(number)}
        yield from (((*labels, name), number * metric.scale) for name, number in _with_series_limit(numbers).items())
    elif _is_number(value):
        yield labels, value * metric.scale


def _with_series_limit(numbers: Mapping[str, float]) -> Mapping[str, float]:
    """Returns the largest numbers by name; the rest is summed up under `other`."""
    if len(numbers) <= TABLES_MAX:
        return numbers
    names = sorted(numbers, key=lambda name: (-numbers[name], name))
    rest = sum(numbers[name] for name in names[TABLES_MAX:])
    return {**{name: numbers[name] for name in names[:TABLES_MAX]}, OTHER: rest}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(view: View, name: str) -> str:
    connector = view.state.connectors.get(name)
    return connector.kind if connector else ""


def families(values: Values, _: View | None = None) -> Iterator[Family]:
    """Yields the metric families of `/metrics`."""
    for metric in ALL:
        yield family(metric.kind, metric.name, metric.help, metric.labels, values[metric.name])


def family(kind: Kind, name: str, help: str, labels: Sequence[str], values: Mapping[Labels, Any]) -> Family:
    """Returns one metric family of prometheus_client."""
    from prometheus_client import core

    if kind == "histogram":
        histogram = core.HistogramMetricFamily(name, help, labels=labels)
        for label, value in sorted(values.items()):
            histogram.add_metric(label, _buckets(value["counts"]), value["sum_s"])
        return histogram
    metric_class = core.CounterMetricFamily if kind == "counter" else core.GaugeMetricFamily
    plain = metric_class(name, help, labels=labels)
    for label, value in sorted(values.items()):
        plain.add_metric(label, value)
    return plain


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    out, total = [], 0
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), counts, strict=True):
        total += count
        out.append((bound, float(total)))
    return out


def text(parts: Iterable[Family], accept: str, *, process: bool = True) -> tuple[bytes, str]:
    """Returns the text and its media type, in the format that the client accepts."""
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import choose_encoder

    class Once:
        def collect(self) -> Iterable[Family]:
            return parts

    # Nothing is asked at registration, so what is named twice only shows in the text.
    registry = CollectorRegistry(auto_describe=False)
    if process:
        ProcessCollector(registry=registry)
    registry.register(Once())
    encode, media_type = choose_encoder(accept)
    return encode(registry), media_type


async def metrics(api: ApiContext, request: Request) -> Response:
    return await answer(api, request, families)


async def answer(
    api: ApiContext, request: Request, families_of: Callable[[Values, View], Iterable[Family]], *, process: bool = True
) -> Response:
    """Returns the metrics as Prometheus' text. `process`: with the metrics of the worker's own process."""
    view = api.view()
    api.rebalance_counts.note(view)
    rebalances = replace(
        api.rebalance_counts, counts=api.rebalance_counts.counts.copy(), causes=api.rebalance_counts.causes.copy()
    )
    scope, accept = request.scope, request.headers.get("accept", "")
    dead_letters = api.services.dead_letters
    redriven = dict(dead_letters.redriven) if dead_letters is not None else {}
    measured = api.services.unassigned_lag
    unassigned = measured() if measured is not None else {}

    def write() -> tuple[bytes, str]:
        all_values = values(
            view,
            rebalances,
            lambda name: visible(scope, name),
            sees_cluster=sees_all(scope),
            redriven=redriven,
            unassigned=unassigned,
        )
        all_values.update(_process(api.settings))
        return text(list(families_of(all_values, view)), accept, process=process)

    body, media_type = await asyncio.to_thread(write)
    return Response(body, media_type=media_type)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/metrics",
        metrics,
        "Metrics for Prometheus",
        "worker",
        produces=TEXT,
        also=OPEN_METRICS,
        role="read",
        whose="each",
        needs_cluster=False,
    ),
)

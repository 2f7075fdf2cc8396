"""`/metrics`: this worker and its tasks in Prometheus' text; what concerns the whole cluster is told by the leader alone."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from cdcworker.connectors.latency import BOUNDS_S
from cdcworker.coordinator.model import TaskId, TaskStatus, View
from cdcworker.coordinator.numbers import RETRYING
from cdcworker.worker.rest import shapes
from cdcworker.worker.rest.context import Api
from cdcworker.worker.rest.metric_table import (
    ALL,
    OF_KIND,
    OTHER,
    TABLES_MAX,
    TASKS,
    Kind,
    Metric,
)
from cdcworker.worker.rest.moves import Moves
from cdcworker.worker.rest.routing import Endpoint
from cdcworker.worker.rest.verify import record_of
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
"""By metric and by the values of its labels: a number, or what a task reports of a histogram."""


def values(
    view: View,
    moves: Moves,
    shown: Callable[[str], bool],
    *,
    all_of_it: bool = True,
    redriven: Mapping[str, int] | None = None,
) -> Values:
    """Everything that can be told now. `shown`: which connectors the caller may know of."""
    out: Values = {metric.name: {} for metric in ALL}
    out["cdc_dead_letters_redriven"] = {(name,): count for name, count in (redriven or {}).items() if shown(name)}
    _worker(out, view)
    if view.is_leader and all_of_it:
        _cluster(out, view, moves)
    if view.is_leader:
        _compared(out, view, shown)
    held = shapes.holders(view)
    for task, holder in held.items():
        if holder.worker_id == view.worker_id and shown(task.connector):
            _task(out, view, task, held)
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


def _cluster(out: Values, view: View, moves: Moves) -> None:
    state = view.state
    out["cdc_cluster_workers"][()] = len(view.workers)
    out["cdc_cluster_epoch"][()] = state.leader.epoch if state.leader else 0
    out["cdc_cluster_decisions"][()] = max((entry.seq for entry in state.journal.values()), default=0)
    out["cdc_cluster_moves"] = {(why,): count for why, count in moves.counts.items()}
    out["cdc_cluster_rebalances"] = {(cause,): count for cause, count in moves.causes.items() if count}
    connectors: Counter[Labels] = Counter()
    tasks: Counter[Labels] = Counter()
    held = shapes.holders(view)
    for connector in state.connectors.values():
        connectors[connector.kind, shapes.own_state(view, connector)[0]] += 1
    for task in shapes.task_ids(view):
        tasks[(shapes.task_state(view, task, held)["state"],)] += 1
    out["cdc_cluster_connectors"], out["cdc_cluster_tasks"] = dict(connectors), dict(tasks)


def _compared(out: Values, view: View, shown: Callable[[str], bool]) -> None:
    for name, connector in view.state.connectors.items():
        record = record_of(view, connector) if shown(name) else None
        if record is None or record.get("state") == "running":
            continue
        result = record.get("result")
        out["cdc_verify_result"][name, result["verdict"] if result else "failed"] = 1
        if result:
            out["cdc_verify_differences"][name,] = result["differences"]
            out["cdc_verify_undecided"][name,] = result["undecided"]
            out["cdc_verify_age_seconds"][name,] = max(0.0, time.time() - record["ended"] / 1000)
            out["cdc_verify_rows_per_second"][name,] = result["rows_per_s"]


def _task(out: Values, view: View, task: TaskId, held: Mapping[TaskId, Any]) -> None:
    kind, labels = _kind(view, task.connector), (task.connector, str(task.task))
    state = shapes.task_state(view, task, held)
    status = shapes.reported(view, held[task])
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
    for metric in (*TASKS, *OF_KIND.get(kind, ())):
        if metric.key and metric.key in status.metrics:
            out[metric.name].update(_reported(metric, labels, status))


def _reported(metric: Metric, labels: Labels, status: TaskStatus) -> Iterator[tuple[Labels, Any]]:
    found = status.metrics[metric.key]
    if metric.kind == "histogram":
        if isinstance(found, dict) and _is_number(found.get("sum_s")) and len(found.get("counts", ())) == STEPS:
            yield labels, found
    elif isinstance(found, dict):
        numbers = {str(name): number for name, number in found.items() if _is_number(number)}
        yield from (((*labels, name), number * metric.scale) for name, number in _bounded(numbers).items())
    elif _is_number(found):
        yield labels, found * metric.scale


def _bounded(numbers: Mapping[str, float]) -> Mapping[str, float]:
    """The largest have series of their own."""
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


def families(found: Values, _: View | None = None) -> Iterator[Family]:
    for metric in ALL:
        yield family(metric.kind, metric.name, metric.help, metric.labels, found[metric.name])


def family(kind: Kind, name: str, help: str, labels: Sequence[str], values: Mapping[Labels, Any]) -> Family:
    from prometheus_client import core

    if kind == "histogram":
        histogram = core.HistogramMetricFamily(name, help, labels=labels)
        for label, value in sorted(values.items()):
            histogram.add_metric(label, _buckets(value["counts"]), value["sum_s"])
        return histogram
    made = core.CounterMetricFamily if kind == "counter" else core.GaugeMetricFamily
    plain = made(name, help, labels=labels)
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
    """The text and its media type, in the form that the reader asks for."""
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


async def metrics(api: Api, request: Request) -> Response:
    return await _answer(api, request, families)


async def compat(api: Api, request: Request) -> Response:
    """The same facts under the names that boards for Kafka Connect and Debezium look for."""
    from cdcworker.worker.rest.metric_compat import families as named

    return await _answer(api, request, named, process=False)


async def _answer(
    api: Api, request: Request, made: Callable[[Values, View], Iterable[Family]], *, process: bool = True
) -> Response:
    view = api.view()
    api.moves.note(view)
    moves = replace(api.moves, counts=api.moves.counts.copy(), causes=api.moves.causes.copy())
    scope, accept = request.scope, request.headers.get("accept", "")
    redriven = dict(api.settings.letters.redriven) if api.settings.letters is not None else {}

    def write() -> tuple[bytes, str]:
        found = values(view, moves, lambda name: visible(scope, name), all_of_it=sees_all(scope), redriven=redriven)
        return text(list(made(found, view)), accept, process=process)

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
    ),
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
    ),
)

"""Metrics: every one of the table is shown, changes when what it tells of changes, and only to whom it may be told."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cdcworker.connectors.telemetry.latency import BOUNDS_S, LatencyHistogram
from cdcworker.coordinator.log.setting_records import COMPARISON
from cdcworker.coordinator.model import Assignment, JournalEntry, TaskMove
from cdcworker.schemas.threads import ThreadDeaths
from cdcworker.schemas.untrusted.refusals import REFUSALS
from cdcworker.worker.rest.rebalance_counts import RebalanceCounts
from cdcworker.worker.rest.resources.monitoring.metric_compat import NAMES
from cdcworker.worker.rest.resources.monitoring.metric_table import ALL, SINK, SOURCE, TABLES_MAX, TASKS
from prometheus_client.parser import text_string_to_metric_families

ME = "leader:8083"
REPORTED = [metric for metric in (*TASKS, *SOURCE, *SINK) if metric.key]


def read(client, path="/metrics", **headers):
    answer = client.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    out = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            assert key not in out, "told twice"
            out[key] = sample.value
    return out


def has(name, metrics, /, **labels):
    wanted = set(labels.items())
    return {key[1:]: value for key, value in metrics.items() if key[0] == name and wanted <= set(key[1:])}


def value(name, metrics, /, **labels):
    (found,) = has(name, metrics, **labels).values()
    return found


def run(cluster, kind="source", **numbers):
    cluster.add("c", kind=kind)
    cluster.plan("c", "RUNNING", worker=ME)
    cluster.report("c", 0, "RUNNING", ME, metrics=numbers)


def sample(metric, number):
    if metric.kind == "histogram":
        latency = LatencyHistogram()
        for _ in range(number):
            latency.note(0.03)
        return latency.numbers()
    return {"part": number} if set(metric.labels) - {"connector", "task"} else number


@pytest.mark.parametrize("metric", REPORTED, ids=lambda metric: metric.name)
def test_what_a_task_reports_is_shown_and_changes(client, cluster, metric):
    kind = "sink" if metric in SINK else "source"
    name = f"{metric.name}_count" if metric.kind == "histogram" else metric.shown
    for number in (3, 5):
        run(cluster, kind, **{metric.key: sample(metric, number)})
        scale = 1.0 if metric.kind == "histogram" else metric.scale
        assert value(name, read(client), connector="c", task="0") == pytest.approx(number * scale)


def test_a_metric_that_is_not_reported_is_not_made_up(client, cluster):
    run(cluster, records=1)
    shown = {key[0] for key in read(client)}
    assert "cdc_source_records_total" in shown
    assert "cdc_source_lag_seconds" not in shown


def test_the_worker_tells_of_itself(client, cluster, herder):
    before = read(client)
    assert value("cdc_worker_info", before, worker=ME) == 1
    assert [value(f"cdc_worker_{part}", before) for part in ("ready", "draining", "leader")] == [1, 0, 1]
    assert value("cdc_worker_tasks", before, kind="source") == 0
    herder.changes = {"ready": False, "draining": True, "last_tick_age_s": 7.5}
    run(cluster)
    after = read(client)
    assert [value(f"cdc_worker_{part}", after) for part in ("ready", "draining")] == [0, 1]
    assert value("cdc_worker_beat_age_seconds", after) == 7.5
    assert value("cdc_worker_tasks", after, kind="source") == 1
    assert any(key[0].startswith("process_") for key in after)


def test_the_leader_alone_tells_of_the_cluster(connect, make_herder, cluster):
    cluster.add("c")
    cluster.plan("c", "RUNNING", "FAILED")
    shown = read(connect(make_herder()))
    assert value("cdc_cluster_workers", shown) == 2
    assert value("cdc_cluster_epoch", shown) == 3
    assert value("cdc_cluster_connectors", shown, kind="source", state="RUNNING") == 1
    assert value("cdc_cluster_tasks", shown, state="FAILED") == 1
    follower = read(connect(make_herder(leads=False)))
    assert value("cdc_worker_leader", follower) == 0
    assert not [key for key in follower if key[0].startswith("cdc_cluster")]
    assert value("cdc_task_state", follower, task="1", state="FAILED") == 1
    assert not has("cdc_task_state", shown), "each worker tells of its own tasks, so that nothing is counted twice"


RETRYING = {"code": "postgres.unreachable", "count": 3, "since_ms": 1_000}


def test_a_task_that_tries_again_is_running_and_its_tries_are_shown(client, cluster):
    run(cluster, records=1, retrying=None)
    assert not has("cdc_task_retries", read(client))
    run(cluster, records=1, retrying=RETRYING)
    shown = read(client)
    assert value("cdc_task_retries", shown, connector="c", code="postgres.unreachable") == 3
    assert value("cdc_task_retrying_seconds", shown, code="postgres.unreachable") > 1e9
    assert value("cdc_task_state", shown, state="RUNNING") == 1
    status = client.get("/connectors/c/status?details=true").json()
    assert (status["health"], status["tasks"][0]["state"]) == ("degraded", "RUNNING")
    assert status["tasks"][0]["retrying"] == RETRYING
    assert client.get("/v1/cluster").json()["tasks"][0]["retrying"] == RETRYING
    assert client.get("/v1/connectors").json()["connectors"][0]["health"] == "degraded"
    cluster.report("c", 0, "PAUSED", ME, metrics={"retrying": RETRYING})
    assert not has("cdc_task_retries", read(client))


def happen(cluster, herder, step):
    """Everything that a metric tells of is another thing at each step."""
    state, held = cluster.state, []
    for kind, metrics in (("source", SOURCE), ("sink", SINK)):
        numbers = {metric.key: sample(metric, step) for metric in (*TASKS, *metrics) if metric.key}
        numbers["retrying"] = {**RETRYING, "count": step, "since_ms": step * 100_000}
        for name in [f"{kind}-{number}" for number in range(step)]:
            connector = cluster.add(name, kind=kind)
            cluster.plan(name, "RUNNING", "FAILED", worker=ME)
            held += cluster.state.assignments[ME].tasks
            cluster.report(name, 0, "RUNNING", ME, metrics=numbers, restarts=(1.0,) * step)
        result = {
            "verdict": ("equal", "different")[step % 2],
            "differences": step,
            "undecided": step,
            "rows_per_s": step,
        }
        record = {"incarnation": connector.incarnation, "state": "ended", "ended": step * 100_000, "result": result}
        cluster.state = replace(cluster.state, settings={**cluster.state.settings, f"{COMPARISON}{kind}-0": record})
    journal = {str(n): JournalEntry(n, 0, "lost", (TaskMove("c", 0, "a", "b", "crash"),)) for n in range(1, step + 1)}
    leader, tasks = replace(state.leader, epoch=step), Assignment("boot-l", tuple(held))
    cluster.state = replace(cluster.state, journal=journal, leader=leader, assignments={ME: tasks})
    for number in range(step):
        cluster.workers[f"more-{number}"] = cluster.workers["follower:8083"]
    herder.changes = {"ready": step % 2 == 0, "draining": step % 2 == 1, "last_tick_age_s": step}


def test_every_documented_metric_is_seen_to_change(connect, cluster, herder, monkeypatch):
    """Looks at a cluster between which everything happens. A metric of the table that stays as it was, or that nobody
    shows, is one that nobody has tested."""
    looks, letters, deaths, warnings = [], SimpleNamespace(redriven={}), ThreadDeaths(), []
    client = connect(herder, dead_letters=letters, threads=deaths, warnings=warnings)
    for step in (1, 2, 3):
        letters.redriven = {"c": step}
        monkeypatch.setattr(
            "cdcworker.worker.rest.resources.monitoring.metrics.version", lambda _, step=step: f"0.{step}"
        )
        happen(cluster, herder, step)
        REFUSALS.add("configs", "no JSON")
        deaths.died("poisoned")
        warnings.append("a property is unused")
        if step == 3:
            deaths.healed("poisoned")
        looks.append(read(client))
    herder.changes = {"is_leader": False}
    looks.append(read(client))
    differ = {
        key[0]
        for before, after in itertools.pairwise(looks)
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key)
    }
    shown = {metric.name: f"{metric.name}_count" if metric.kind == "histogram" else metric.shown for metric in ALL}
    assert [name for name in shown if shown[name] not in differ] == []


def test_moves_are_counted_by_why_from_the_first_look_on(client, cluster, herder):
    def decide(seq, why):
        entry = JournalEntry(seq, 0, "lost", (TaskMove("c", 0, "a", "b", why),))
        cluster.state = replace(cluster.state, journal={**cluster.state.journal, str(seq): entry})

    decide(4, "before")
    assert not has("cdc_cluster_moves_total", read(client))
    decide(5, "crash")
    decide(6, "crash")
    shown = read(client)
    assert value("cdc_cluster_moves_total", shown, why="crash") == 2
    assert value("cdc_cluster_rebalances_total", shown, cause="lost") == 2
    assert value("cdc_cluster_decisions_total", shown) == 6
    assert value("cdc_cluster_moves_total", read(client), why="crash") == 2


def test_who_does_not_lead_counts_no_moves(make_herder, cluster):
    moves, herder = RebalanceCounts(seen=0), make_herder(leads=False)
    entry = JournalEntry(5, 0, "lost", (TaskMove("c", 0, "a", "b", "crash"),))
    cluster.state = replace(cluster.state, journal={"5": entry})
    moves.note(herder.view())
    assert not moves.counts
    assert moves.seen == 5


def test_a_failed_task_is_named_with_its_error(client, cluster):
    run(cluster)
    assert not has("cdc_task_error", read(client))
    cluster.report("c", 0, "FAILED", ME, restarts=(1.0, 2.0))
    shown = read(client)
    assert value("cdc_task_error", shown, code="postgres.slot_lost", **{"class": "environment"}) == 1
    assert value("cdc_task_restarts", shown, connector="c") == 2


def test_tables_have_series_of_their_own_up_to_a_bound(client, cluster):
    run(cluster, "sink", tables={f"t{n}": n + 1 for n in range(TABLES_MAX + 10)})
    shown = has("cdc_sink_table_rows_total", read(client))
    assert len(shown) == TABLES_MAX + 1
    assert shown[("connector", "c"), ("table", "other"), ("task", "0")] == sum(range(1, 11))
    assert sum(shown.values()) == sum(range(1, TABLES_MAX + 11))


def test_a_histogram_adds_up(client, cluster):
    latency = LatencyHistogram()
    for seconds in (-1.0, 0.005, 0.2, 1000.0):
        latency.note(seconds)
    run(cluster, latency=latency.numbers())
    shown = read(client)
    assert value("cdc_source_latency_seconds_bucket", shown, le="0.005") == 2
    assert value("cdc_source_latency_seconds_bucket", shown, le=str(BOUNDS_S[-1])) == 3
    assert value("cdc_source_latency_seconds_bucket", shown, le="+Inf") == 4
    assert value("cdc_source_latency_seconds_sum", shown) == pytest.approx(1000.205)


@pytest.mark.parametrize("odd", [{"counts": [1]}, 5, {"counts": [0] * (len(BOUNDS_S) + 1)}, "x", None, True])
def test_numbers_of_another_version_break_nothing(client, cluster, odd):
    run(cluster, latency=odd, records=odd, snapshot_rows=4)
    assert value("cdc_snapshot_rows_total", read(client)) == 4


def test_a_name_that_is_no_word_is_escaped(client, cluster):
    cluster.add('a"b\nc\\')
    cluster.plan('a"b\nc\\', "RUNNING", worker=ME)
    assert value("cdc_task_state", read(client), connector='a"b\nc\\') == 1


def test_who_asks_for_openmetrics_gets_it(client):
    answer = client.get("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    assert client.get("/metrics").headers["content-type"].startswith("text/plain")


# --- the names of others ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connector_class", "plugin"),
    [
        ("postgres", "postgres"),
        ("io.debezium.connector.mysql.MySqlConnector", "mysql"),
        ("mariadb", "mariadb"),
        ("of.nobody", ""),
    ],
)
def test_boards_for_connect_and_debezium_find_their_names(client, cluster, connector_class, plugin):
    run(cluster, records=7, events=9, lag_s=1.5, transactions=2, snapshot_tables_left=3, snapshot_rows=11)
    cluster.add("c", {"topic.prefix": "shop", "connector.class": connector_class})
    shown = read(client, "/metrics/connect")
    streaming = {"context": "streaming", "name": "shop", "plugin": plugin}
    for name in ("debezium_metrics_MilliSecondsBehindSource", "debezium_metrics_millisecondsbehindsource"):
        assert value(name, shown, **streaming) == 1500
    assert value("debezium_metrics_Connected", shown, **streaming) == 1
    assert value("debezium_metrics_TotalNumberOfEventsSeen", shown, context="streaming") == 9
    assert value("debezium_metrics_TotalNumberOfEventsSeen", shown, context="snapshot") == 11
    assert value("kafka_connect_source_task_source_record_write_total", shown, connector="c", task="0") == 7
    assert value("kafka_connect_connector_status", shown, status="running") == 1
    assert value("kafka_connect_worker_task_count", shown) == 1
    assert value("kafka_connect_worker_connector_count", shown) == 1


def test_every_name_of_others_is_one_of_ours():
    assert {name.of for name in NAMES} <= {metric.name for metric in ALL}


def test_names_follow_prometheus_conventions():
    assert len({metric.name for metric in ALL}) == len(ALL)
    for metric in ALL:
        assert metric.name.startswith("cdc_")
        assert not metric.name.endswith("_total")
        assert metric.help.endswith((".", "worker leads."))

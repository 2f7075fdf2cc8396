"""Metrics: every one of the table is shown, changes when what it tells of changes, and only to whom it may be told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cdcworker.connectors.latency import BOUNDS_S, Latency
from cdcworker.coordinator.model import JournalEntry, Move
from cdcworker.worker.rest.metric_compat import NAMES
from cdcworker.worker.rest.metric_table import ALL, SINK, SOURCE, TABLES_MAX, TASKS
from cdcworker.worker.rest.moves import Moves
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
        latency = Latency()
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


def test_moves_are_counted_by_why_from_the_first_look_on(client, cluster, herder):
    def decide(seq, why):
        entry = JournalEntry(seq, 0, "lost", (Move("c", 0, "a", "b", why),))
        cluster.state = replace(cluster.state, journal={**cluster.state.journal, str(seq): entry})

    decide(4, "before")
    assert not has("cdc_cluster_moves_total", read(client))
    decide(5, "crash")
    decide(6, "crash")
    shown = read(client)
    assert value("cdc_cluster_moves_total", shown, why="crash") == 2
    assert value("cdc_cluster_decisions_total", shown) == 6
    assert value("cdc_cluster_moves_total", read(client), why="crash") == 2


def test_who_does_not_lead_counts_no_moves(make_herder, cluster):
    moves, herder = Moves(seen=0), make_herder(leads=False)
    entry = JournalEntry(5, 0, "lost", (Move("c", 0, "a", "b", "crash"),))
    cluster.state = replace(cluster.state, journal={"5": entry})
    assert not moves.note(herder.view())
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
    latency = Latency()
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


def test_boards_for_connect_and_debezium_find_their_names(client, cluster):
    run(cluster, records=7, events=9, lag_s=1.5, transactions=2, snapshot_tables_left=3, snapshot_rows=11)
    cluster.add("c", {"topic.prefix": "shop"})
    shown = read(client, "/metrics/connect")
    streaming = {"context": "streaming", "name": "shop", "plugin": "postgres"}
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

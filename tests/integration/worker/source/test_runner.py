"""Source tasks as real processes on a real broker: killed at any step, nothing is lost and nothing comes twice."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import pytest
from cdcworker.schemas.decode import RecordDecoder
from cdcworker.worker.conformance.task_cluster import EPOCH, TaskCluster
from cdcworker.worker.conformance.task_process import DEADLINE_S, TaskProcess
from cdcworker.worker.producers.transactional import TransactionalProducer
from cdcworker.worker.protocol.task_spec import DATA_IDS, TaskSpec

from . import scripted_child

pytestmark = pytest.mark.kafka

SCRIPT = Path(__file__).with_name("scripted_child.py")
POINTS = ("source.before_produce", "source.before_commit", "source.after_commit", "source.before_ack")


def at(child: TaskProcess, lsn: int) -> bool:
    return child.number("position") == {"lsn": lsn}


class Cluster(TaskCluster):
    """The logs around tasks of the scripted source."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, "scripted")

    def spec(self, transactions: int, epoch: int = EPOCH, **config: str) -> TaskSpec:
        names = {key.replace("_", "."): text for key, text in config.items()}
        own = {
            "topic.prefix": self.prefix,
            "topic.creation.default.partitions": "3",
            "scripted.transactions": str(transactions),
        }
        return self.task_spec({**own, **names}, epoch)

    def child(self, spec: TaskSpec, failpoints: str = "") -> TaskProcess:
        return self.start(spec, failpoints, command=(sys.executable, str(SCRIPT)))

    def rows(self) -> dict[str, list[dict]]:
        """Decoded envelopes per table, in the order of each partition."""
        decoder = RecordDecoder(self.schemas())
        return {
            name: [decoder.decode(value) for _, _, value in self.read(f"{self.prefix}.public.{name}")]
            for name in ("a", "bb")
        }


@pytest.fixture
def cluster(kafka) -> Iterator[Cluster]:
    made = Cluster(kafka.bootstrap)
    made.assign()
    yield made
    made.close()


def assert_exactly_once(cluster: Cluster, transactions: int, wide_from: int = 1_000_000_000) -> None:
    wanted: dict[str, list[str]] = {"a": [], "bb": []}
    per_key: dict[tuple[str, int], list[str]] = {}
    for lsn in range(1, transactions + 1):
        for change in CHANGES(lsn, wide_from):
            wanted[change.table.path[1]].append(change.after[1])
            per_key.setdefault((change.table.path[1], change.after[0]), []).append(change.after[1])
    rows = cluster.rows()
    for name, notes in wanted.items():
        got = [row["after"]["note"] for row in rows[name]]
        assert sorted(got) == sorted(notes), name
    for (name, key), notes in per_key.items():
        assert [row["after"]["note"] for row in rows[name] if row["after"]["id"] == key] == notes


CHANGES = scripted_child.changes


@pytest.mark.sampled(2, "tasks")
def test_a_source_task_delivers_everything_and_stops_when_told(cluster):
    child = cluster.child(cluster.spec(300, scripted_wide_from="100"))
    child.wait_for(lambda: at(child, 300), "the last position")
    assert child.stop() == 0
    assert child.states() == ["RUNNING", "STOPPED"]
    topics = {name for message in child.messages if message["type"] == "topics" for name in message["topics"]}
    assert topics == {f"{cluster.prefix}.public.a", f"{cluster.prefix}.public.bb", f"{cluster.prefix}.watermark"}
    assert_exactly_once(cluster, 300, 100)
    assert cluster.position() == {"lsn": 300}
    marks = [json.loads(value)["commit_lsn"] for _, _, value in cluster.read(f"{cluster.prefix}.watermark")]
    assert marks == sorted(marks)
    assert marks[-1] == 300
    assert len(cluster.schemas().versions(f"{cluster.prefix}.public.a-value")) == 2


def test_killed_at_every_step_again_and_again_nothing_is_lost_or_doubled(cluster):
    killed_at(cluster, zip(POINTS, (1, 4, 1, 4), strict=True))


@pytest.mark.long
def test_killed_at_the_first_and_a_later_pass_of_every_step_nothing_is_lost_or_doubled(cluster):
    killed_at(cluster, product(POINTS, (1, 4)))


def killed_at(cluster: Cluster, passes: Iterable[tuple[str, int]]) -> None:
    spec = cluster.spec(240, scripted_wide_from="120")
    for point, count in passes:
        child = cluster.child(spec, f"{point}=kill@{count}")
        assert child.join() == -signal.SIGKILL, child.log.decode()
    child = cluster.child(spec)
    child.wait_for(lambda: at(child, 240), "the last position")
    assert child.stop() == 0
    assert_exactly_once(cluster, 240, 120)


def test_a_process_that_is_taken_over_ends_as_fenced_and_has_written_nothing_more(cluster):
    child = cluster.child(cluster.spec(40))
    child.wait_for(lambda: at(child, 40), "the last position")
    cluster.assign(EPOCH + 1, "another boot")
    others = [
        TransactionalProducer(
            cluster.kafka, make(cluster.group, "shop", 0), client_id="other", transaction_timeout_ms=10_000
        )
        for make in DATA_IDS
    ]
    assert child.join() == 3
    assert child.states() == ["RUNNING"]
    for other in others:
        other.close()
    assert_exactly_once(cluster, 40)


@pytest.mark.sampled(2, "tasks")
@pytest.mark.parametrize("make", [DATA_IDS[0], *(pytest.param(make, marks=pytest.mark.long) for make in DATA_IDS[1:])])
def test_a_rightful_owner_that_is_fenced_by_a_zombie_goes_on(cluster, make):
    child = cluster.child(cluster.spec(100_000, scripted_pause_ms="20"))
    child.wait_for(lambda: "RUNNING" in child.states(), "running")
    zombie = TransactionalProducer(
        cluster.kafka, make(cluster.group, "shop", 0), client_id="zombie", transaction_timeout_ms=10_000
    )
    child.wait_for(lambda: child.states().count("RUNNING") == 2, "running again")
    zombie.close()
    at_fence = cluster.position()
    child.wait_for(lambda: cluster.position() != at_fence, "progress after the fence")
    assert child.stop() == 0
    assert_exactly_once(cluster, cluster.position()["lsn"])


@pytest.mark.sampled(2, "tasks")
def test_a_start_that_is_not_assigned_touches_nothing(cluster):
    child = cluster.child(cluster.spec(10, epoch=EPOCH - 1))
    assert child.join() == 3
    assert child.states() == []
    assert cluster.position() is None


@pytest.mark.sampled(2, "tasks")
def test_pause_and_resume_keep_the_order(cluster):
    child = cluster.child(cluster.spec(100_000, scripted_pause_ms="20"))
    child.wait_for(lambda: "RUNNING" in child.states(), "running")
    child.say(type="pause")
    child.wait_for(lambda: "PAUSED" in child.states(), "paused")
    at_pause = cluster.position()
    child.say(type="resume")
    child.wait_for(lambda: child.states() == ["RUNNING", "PAUSED", "RUNNING"], "running again")
    child.wait_for(lambda: cluster.position() != at_pause, "progress")
    assert child.stop() == 0
    assert_exactly_once(cluster, cluster.position()["lsn"])


@pytest.mark.sampled(2, "tasks")
def test_without_a_lease_the_task_falls_silent_and_goes_on_with_one(cluster):
    spec = cluster.spec(100_000, scripted_pause_ms="20")
    data = {**spec.to_json(), "session_timeout_s": 3.0}
    child = cluster.child(TaskSpec.from_json(data))
    child.wait_for(lambda: b"lease has lapsed" in child.log, "silence")
    before = cluster.position()
    assert cluster.position() == before
    child.say(type="lease", valid_s=60)
    child.wait_for(lambda: child.states().count("RUNNING") == 2, "running again")
    child.wait_for(lambda: cluster.position() != before, "progress")
    assert child.stop() == 0
    assert_exactly_once(cluster, cluster.position()["lsn"])


@pytest.mark.sampled(2, "tasks")
def test_when_the_worker_is_gone_the_task_ends_at_once(cluster):
    child = cluster.child(cluster.spec(10))
    child.wait_for(lambda: at(child, 10), "the last position")
    child.process.stdin.close()
    assert child.process.wait(DEADLINE_S) == -signal.SIGKILL


@pytest.mark.sampled(2, "tasks")
def test_a_broker_that_restarts_is_survived(kafka, cluster):
    child = cluster.child(cluster.spec(300, scripted_pause_ms="20"))
    child.wait_for(lambda: "RUNNING" in child.states(), "running")
    kafka.restart()
    child.wait_for(lambda: at(child, 300), "the last position")
    assert child.stop() == 0
    assert_exactly_once(cluster, 300)


@pytest.mark.sampled(2, "tasks")
def test_a_wrong_config_is_a_named_failure(cluster):
    child = cluster.child(cluster.spec(10, batch_commit_ms_max="soon"))
    assert child.join() == 1
    status = child.messages[-1]
    assert status["state"] == "FAILED"
    assert status["error"]["code"] == "config.invalid"
    assert "batch.commit.ms.max" in status["error"]["message"]

"""Checks with real task processes on a real Kafka: killed at each step, paused, told to stop while the outside is away."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from cdcworker.connectors.formats.connect_json import JSON
from cdcworker.connectors.record_sink.config import BATCH_DEFAULT
from cdcworker.worker.conformance.findings import Check, Problem, require
from cdcworker.worker.conformance.harness import GoesAway, KnowsRows, SinkHarness, SourceHarness
from cdcworker.worker.conformance.task_cluster import TaskCluster
from cdcworker.worker.conformance.task_process import TaskProcess
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

STEPS: Final = (
    "source.before_produce",
    "source.produced",
    "source.before_commit",
    "source.after_commit",
    "source.before_ack",
)
STOP_S_MAX: Final = 30.0
ROWS: Final = 10
ONE_PARTITION: Final = {"topic.creation.default.partitions": "1"}
"""Only a partition has an order."""
JSON_VALUES: Final = {
    "key.converter": JSON,
    "value.converter": JSON,
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
}


class Place(NamedTuple):
    """Where task processes run: a broker, the name of the connector, and variables by which they find its plugin."""

    bootstrap: str
    connector_class: str
    config: Mapping[str, str]
    variables: Mapping[str, str] = {}
    providers: Mapping[str, str] = {}


class SourceOnKafka:
    """Checks of a source whose outside knows its rows."""

    def __init__(self, place: Place, harness: SourceHarness) -> None:
        self._place = place
        self._harness = harness

    def all(self) -> Sequence[Check]:
        return (
            Check("killed at each step, nothing is lost and nothing comes twice", self.killed),
            Check("a pause is kept, and the order behind it", self.paused),
            Check("the task ends when it is told to while the outside is away", self.stopped_while_away),
        )

    def killed(self) -> None:
        """Each process is killed at a step of its own; the last one brings what is left."""
        with _Run(self._place, "source") as run:
            for step in STEPS:
                self._harness.write(ROWS)
                child = run.start(f"{step}=kill@1")
                require(
                    child.join() == -signal.SIGKILL,
                    f"the task did not come to {step}: {child.error() or child.states()}",
                )
            self._harness.write(ROWS)
            child = run.start()
            self._all_there(run, child)
            child.stop()

    def paused(self) -> None:
        with _Run(self._place, "source") as run:
            child = run.start()
            self._harness.write(ROWS)
            self._all_there(run, child)
            child.say(type="pause")
            child.wait_for(lambda: child.states()[-1:] == ["PAUSED"], "a pause")
            count = len(run.values())
            self._harness.write(ROWS)
            require(len(run.values()) == count, "rows come while the task is paused")
            child.say(type="resume")
            self._all_there(run, child)
            child.stop()

    def stopped_while_away(self) -> None:
        harness = self._harness
        if not isinstance(harness, GoesAway):
            return
        with _Run(self._place, "source") as run:
            child = run.start()
            harness.write(ROWS)
            self._all_there(run, child)
            harness.stop()
            try:
                child.wait_for(lambda: child.number("retrying"), "that the task tries again", 30.0)
                require("FAILED" not in child.states(), f"an outside that is away ends the task: {child.error()}")
                began = time.monotonic()
                child.stop(STOP_S_MAX)
                require(time.monotonic() - began < STOP_S_MAX, "the task does not end when it is told to")
            finally:
                harness.start()

    def _all_there(self, run: _Run, child: TaskProcess) -> None:
        """Waits until the topics hold what the outside has, and compares."""
        if not isinstance(self._harness, KnowsRows):
            raise Problem("the harness has no `rows`: nobody can tell what is missing")
        rows = self._harness.rows()
        child.wait_for(lambda: len(run.values()) >= len(rows), "all rows in Kafka", 60.0)
        found: dict[str, list[Any]] = {}
        for topic, value in run.values():
            found.setdefault(topic.rpartition(".")[2], []).append(value["after"])
        wanted: dict[str, list[Mapping[str, Any]]] = {}
        for table, row in rows:
            wanted.setdefault(table, []).append(row)
        for table, expected in wanted.items():
            got = found.get(table, [])
            require(len(got) == len(expected), f"{len(got)} records of {table} for {len(expected)} rows")
            same = all(after.items() >= row.items() for after, row in zip(got, expected, strict=True))
            require(same, f"records of {table} are others, or in another order, than was written")


class SinkOnKafka:
    """Checks of a sink: what a topic holds comes to the target whatever dies."""

    def __init__(self, place: Place, harness: SinkHarness) -> None:
        self._place = place
        self._harness = harness

    def all(self) -> Sequence[Check]:
        return (
            Check("killed again and again, every record is taken in the end, in its order", self.killed),
            Check("the task ends when it is told to while the target is away", self.stopped_while_away),
        )

    def killed(self) -> None:
        with _Run(self._place, "sink") as run:
            count = 3 * BATCH_DEFAULT
            run.fill(count)
            before = len(set(self._harness.received()))
            for share in (5, 2):
                child = run.start()
                wanted = before + count // share
                child.wait_for(partial(self._has, wanted), "records", 60.0)
                child.kill()
            child = run.start()
            child.wait_for(partial(self._has, before + count), "every record", 60.0)
            child.stop(STOP_S_MAX)
            places = [id.rsplit("-", 2)[1:] for id in list(dict.fromkeys(self._harness.received()))[before:]]
            for partition in {place[0] for place in places}:
                offsets = [int(offset) for number, offset in places if number == partition]
                require(offsets == sorted(offsets), "records of a partition are in another order")

    def stopped_while_away(self) -> None:
        harness = self._harness
        if not isinstance(harness, GoesAway):
            return
        with _Run(self._place, "sink") as run:
            harness.stop()
            try:
                run.fill(20)
                child = run.start()
                child.wait_for(lambda: child.number("retrying"), "that the task tries again", 30.0)
                child.stop(STOP_S_MAX)
            finally:
                harness.start()

    def _has(self, count: int) -> bool:
        return len(set(self._harness.received())) >= count


class _Run:
    """One connector with topics of its own, and its processes."""

    def __init__(self, place: Place, kind: Any) -> None:
        self._place = place
        self._cluster = TaskCluster(place.bootstrap, place.connector_class, kind)
        self._cluster.assign()
        self.topic = f"{self._cluster.prefix}.rows"

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def start(self, failpoints: str = "") -> TaskProcess:
        cluster = self._cluster
        own = (
            {"topics": self.topic}
            if cluster.kind == "sink"
            else {"topic.prefix": cluster.prefix, "poll.interval.ms": "50", **ONE_PARTITION}
        )
        spec = cluster.task_spec({**JSON_VALUES, **own, **self._place.config}, providers=dict(self._place.providers))
        return cluster.start(spec, failpoints, variables=self._place.variables)

    def fill(self, count: int) -> None:
        """Writes records of JSON into the sink's topic, which has three partitions."""
        settings = {**self._cluster.kafka, "log_level": 2}
        admin = AdminClient(settings)
        for future in admin.create_topics([NewTopic(self.topic, 3, 1)]).values():
            future.result(30)
        producer = Producer({**settings, "enable.idempotence": True})
        for n in range(count):
            producer.produce(self.topic, json.dumps({"id": n, "text": "x" * (n % 50)}), str(n), n % 3)
        require(producer.flush(30) == 0, "Kafka does not take the records of the check")

    def values(self) -> list[tuple[str, Any]]:
        """Returns the committed records of the source's topics, by topic."""
        said = (m["topics"] for each in self._cluster.children for m in each.messages if m["type"] == "topics")
        names = sorted({name for topics in said for name in topics if not name.endswith(".watermark")})
        return [(name, json.loads(value)) for name in names for _, _, value in self._cluster.read(name)]

"""Poison in all own topics of a running worker: the cluster goes on, also after a start that reads all of it again."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests import plain_http
from tests.integration.one_worker import Worker

from .poison import CORPUS, DEEP

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

REFUSED = "cdc_worker_records_refused_total"


def _write(bootstrap: str, group: str, place: tuple[int, bytes]) -> None:
    """Writes the corpus, and a deep value over the position at `place`."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    partitions = {"configs": (0,), "schemas": (0,), "status": range(5), "offsets": range(3)}
    # A broker takes no record without a key into a compacted topic.
    for poison in (one for one in CORPUS if one.key is not None):
        for number in partitions[poison.topic]:
            headers = list(poison.headers)
            producer.produce(
                f"{group}.{poison.topic}", key=poison.key, value=poison.value, partition=number, headers=headers
            )
        producer.poll(0)
    number, key = place
    producer.produce(f"{group}.offsets", key=key, value=DEEP, partition=number)
    assert producer.flush(60.0) == 0


def _refused(worker: Worker) -> dict[str, float]:
    """How many records the worker has refused, by log."""
    lines = plain_http.get(f"{worker.url}/metrics", timeout=30.0).text.splitlines()
    found = (line.rpartition(" ") for line in lines if line.startswith(REFUSED + "{"))
    return {name.partition('log="')[2].partition('"')[0]: float(number) for name, _, number in found}


def _requires_a_working_cluster(worker: Worker) -> None:
    worker.wait_state("good", "RUNNING")
    worker.wait_ready()
    # Whoever leads may have taken the tasks over just now.
    before = worker.wait(lambda: worker.task("good")["metrics"].get("records"), "records")
    worker.wait(lambda: worker.task("good")["metrics"].get("records", 0) > before, "more records")
    assert worker.get("/connectors/c/status")["connector"]["state"] == "FAILED"
    assert "coordinator.record_refused" in worker.get("/connectors/c/status")["connector"]["trace"]
    subject = next(name for name in worker.get("/subjects") if name.startswith(f"{worker.group}-good"))
    assert worker.get(f"/subjects/{subject}/versions/latest")["schema"]
    assert isinstance(worker.get("/schemas"), list)


def test_a_worker_and_its_next_start_live_through_poison_in_all_own_topics(kafka: Any, tmp_path: Path) -> None:
    group = f"p{uuid.uuid4().hex[:8]}"
    worker = Worker(tmp_path, kafka.bootstrap, group)
    try:
        worker.wait_ready()
        generator = {"connector.class": "datagen", "rows.per.second": "20"}
        for name in ("good", "halted"):
            worker.put(name, {**generator, "topic.prefix": f"{group}-{name}"})
            worker.wait_state(name, "RUNNING")

        def stored() -> Any:
            records = worker.read(f"{group}.offsets")
            return next(((one.partition(), one.key()) for one in records if b'"halted"' in one.key()), None)

        place = worker.wait(stored, "a position")
        worker.ask("PUT", "/connectors/halted/stop")
        worker.wait(lambda: not worker.get("/connectors/halted/status")["tasks"], "the stop")
        # The status tells what is wanted; the process may still write its last position over the poison.
        worker.wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in worker.starts("halted-0")), "its end")
        _write(kafka.bootstrap, group, place)
        worker.wait(lambda: {"configs", "status", "schemas"} <= _refused(worker).keys(), "refusals of three logs")
        _requires_a_working_cluster(worker)
        assert worker.end() == 0
        log = worker.log.read_text()
        worker = Worker(tmp_path, kafka.bootstrap, group, "w2")
        worker.wait_ready()
        _requires_a_working_cluster(worker)
        resume = f"{worker.url}/connectors/halted/resume"
        worker.wait(lambda: plain_http.put(resume, timeout=30.0).status_code == 202, "the request to resume")
        halted = worker.wait_state("halted", "FAILED", timeout_s=120.0)
        assert "kafka.malformed_record" in str(halted["error"])
        assert "thread died" not in log + worker.log.read_text()
    finally:
        worker.kill()

"""What every sink of records has to do with dead letters: those whose cause is repaired come to the receiver, once, and the others stay.

The module of a target runs these tests over its fixture `receiver`, as those of `record_targets`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from cdcworker.connectors.api.sink import DeadLetterFilter, LedgerAccess
from cdcworker.connectors.registry.names import lookup
from cdcworker.coordinator.kafka.clients import settings
from cdcworker.schemas.errors import CODES

from tests.record_sinks import TaskProcess, Topics, Workload, wait

POISONED = 10
BROKEN = {
    "transforms": "broken",
    "transforms.broken.type": "io.debezium.transforms.Filter",
    "transforms.broken.language": "cel",
    "transforms.broken.condition": "100 / (value.after.n - 7) > -1000",
}
"""A filter that fails for a row whose n is 7."""


class Letters:
    """The dead letters of one sink, asked for as a worker does."""

    def __init__(self, topics: Topics, config: dict[str, str], folder: Any) -> None:
        self.topics = topics
        named = {"errors.deadletterqueue.topic.name": topics.letters, "errors.tolerance": "all"}
        headers = {"errors.deadletterqueue.context.headers.enable": "true"}
        self.config = {"name": topics.name, "topics": topics.topic, **config, **named, **headers}
        self._folder = str(folder)

    def asked(self, do: str, *, broken: bool = False, **more: Any) -> dict[str, Any]:
        config = self.config | (BROKEN if broken else {})
        place = LedgerAccess(self.topics.name, file_roots=(self._folder,))
        kafka = settings({"bootstrap.servers": self.topics.kafka.bootstrap}, "consumer")
        sink = lookup(config["connector.class"]).load()(config)
        return dict(getattr(sink, do)(place, DeadLetterFilter(kafka=kafka, schema_topic=self.topics.schemas, **more)))

    def killed(self, failpoint: str) -> None:
        """A request whose process dies at a place."""
        question = {
            "kafka": {"bootstrap.servers": self.topics.kafka.bootstrap},
            "providers": {"config.providers.file.roots": self._folder},
            "schema_topic": self.topics.schemas,
            "connector": self.topics.name,
            "config": self.config,
            "asked": {"seconds": 20.0},
            "do": "redrive",
        }
        found = subprocess.run(
            [sys.executable, "-m", "cdcworker.worker.dead_letters.child"],
            input=json.dumps(question).encode(),
            env={**os.environ, "CDC_FAILPOINTS": failpoint},
            capture_output=True,
            timeout=120,
        )
        assert found.returncode == -signal.SIGKILL, (found.stdout, found.stderr[-2_000:])


@pytest.fixture
def poisoned(kafka, receiver, tmp_path, request):
    """A sink that has set ten of many records aside, and the rows of all."""
    count = getattr(request, "param", 1_000)
    topics = Topics(kafka)
    workload = Workload(topics, 1)
    for number in range(count):
        row = (number, number % (count // POISONED), "secretsecret")
        topics.stream.insert(workload.table, row)
        workload.rows[number] = workload._told(row)
    topics.flush()
    letters = Letters(topics, receiver.config, tmp_path)
    task = TaskProcess(topics, letters.config | BROKEN | {"offset.commit.interval.ms": "100"}, (1, 0), tmp_path)
    try:
        wait(lambda: task.numbers.get("lag_records") == 0, "that all were read")
        wait(lambda: len(receiver.ledger.held()) == count - POISONED, "the others")
        task.stop()
    finally:
        task.kill()
    return workload, letters


def test_letters_whose_cause_is_repaired_come_to_the_receiver_once(receiver, poisoned):
    workload, letters = poisoned
    found = letters.asked("dead_letters", limit=4)
    assert (found["total"], len(found["letters"])) == (POISONED, 4)
    first = found["letters"][0]
    assert first["topic"] == letters.topics.topic
    assert (first["code"] in CODES, bool(first["cause"])) == (True, True), first
    assert "secretsecret" not in json.dumps(found)
    rest = letters.asked(
        "dead_letters", after=tuple(found["letters"][-1][name] for name in ("topic", "partition", "offset"))
    )
    assert len(rest["letters"]) == POISONED - 4

    still = letters.asked("redrive", broken=True)
    assert (still["redriven"], still["failed"], still["left"]) == (0, POISONED, POISONED)
    assert still["causes"][0]["letters"] == POISONED
    assert still["next"] is None, "what has failed again is not tried in the same request"
    assert letters.asked("redrive", dry_run=True)["redriven"] == POISONED
    assert len(receiver.ledger.held()) == len(workload.rows) - POISONED, "a trial writes nothing"

    done = letters.asked("redrive")
    assert (done["redriven"], done["failed"], done["left"]) == (POISONED, 0, 0)
    wait(lambda: receiver.ledger.held() == workload.rows, "all rows")
    assert letters.asked("redrive")["redriven"] == 0
    assert letters.asked("dead_letters")["total"] == 0
    assert getattr(receiver.ledger, "twice", 0) == 0


@pytest.mark.long
@pytest.mark.parametrize("poisoned", [10_000], indirect=True)
def test_ten_letters_of_ten_thousand_records_come_to_the_receiver(receiver, poisoned):
    workload, letters = poisoned
    assert letters.asked("redrive")["redriven"] == POISONED
    wait(lambda: receiver.ledger.held() == workload.rows, "all rows")


def test_a_request_that_dies_is_gone_on_with(receiver, poisoned):
    workload, letters = poisoned
    letters.killed("letters.before_commit=kill")
    assert letters.asked("dead_letters")["total"] == POISONED
    assert letters.asked("redrive")["redriven"] == POISONED
    wait(lambda: receiver.ledger.held() == workload.rows, "all rows")
    assert len(receiver.ledger.held()) == len(workload.rows)

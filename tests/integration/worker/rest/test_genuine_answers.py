"""Our answers beside those of a genuine Kafka Connect 4.3 to the same requests: status, headers, members, texts, values.

What it answered is kept in `tests/genuine/answers.json`. The fast test asks a herder in memory; the long ones ask it anew,
and a real worker on a real broker. `tests/genuine/deliberate.py` has what is other on purpose.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from cdcworker.coordinator.core.events import TaskExited, TaskReport, TaskTopics
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.coordinator.log.offset_records import OffsetRecord, offset_key, offset_value, offsets_partition
from cdcworker.coordinator.memory import LogRecord
from cdcworker.worker.app import plan
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.herder.herder import Herder
from cdcworker.worker.rest.settings import ApiSettings, RequestLimits, Services
from cdcworker.worker.server.application import create_app

from tests import herders
from tests.genuine import deliberate, recording
from tests.genuine.comparison import differences
from tests.genuine.connect import GenuineConnect
from tests.genuine.parts import libraries
from tests.herders import eventually
from tests.integration.one_worker import Worker
from tests.integration.worker.rest.test_conformance import Keeper

GENUINE: dict[str, Any] = json.loads(recording.ANSWERS.read_text(encoding="utf-8"))
PARTITIONS = 3


class Tasks(herders.StubLauncher):
    """Tasks that do what is seen of file connectors: a source stores its position, a sink without a folder fails."""

    def __init__(self, keeper: Keeper) -> None:
        super().__init__()
        self._keeper = keeper

    def start(self, task: Any, spec: Any) -> None:
        super().start(task, spec)
        file = Path(spec.config["file"])
        if spec.kind == "source":
            key = offset_key(task.connector, {"filename": str(file)})
            value = offset_value(OffsetRecord(task.incarnation, task.task_epoch, {"position": 8}))
            number = offsets_partition(task.connector, task.task, PARTITIONS)
            self._keeper.stored.append(LogRecord(key, json.loads(json.dumps(value)), {}, 0, number))
            self._post(TaskTopics(task, (spec.config["topic"],)))
        elif not file.parent.is_dir():
            error = {"code": "file.sink_failed", "kind": "environment", "message": "no folder", "hint": "make it"}
            self._post(TaskReport(task, "FAILED", error=error))
            self._post(TaskExited(task, 1))


@pytest.fixture
def levels():
    """As they are in a worker; loggers are given back as they were."""
    before = {name: logging.getLogger(name).level for name in logging.root.manager.loggerDict}
    root = logging.root.level
    logging.root.setLevel(logging.INFO)
    yield
    logging.root.setLevel(root)
    for name in logging.root.manager.loggerDict:
        logging.getLogger(name).setLevel(before.get(name, logging.NOTSET))


@pytest.fixture
def in_memory(tmp_path, levels):
    """What a herder in memory answers to everything."""
    group = f"g-{uuid.uuid4().hex[:8]}"
    keeper = Keeper(group, tmp_path, "lines")
    config = HerderConfig(
        {}, group, "one:8083", "http://one:8083", TopicNames.of_group(group), offsets_partitions=PARTITIONS,
        session_timeout_s=herders.SESSION_S, version="1", backend="memory",
    )  # fmt: skip
    herder = Herder(config, plan, Tasks(keeper))
    herder.start()
    (tmp_path / "in").write_text(recording.LINES)
    settings = ApiSettings(
        limits=RequestLimits(events_s_max=0.0),
        services=Services(offsets=keeper),
        live_checks=False,
        takes_unknown_keys=True,
    )
    try:
        assert herder.wait_started(30)
        eventually(lambda: herder.view().is_leader)
        app = create_app(herder, settings=settings)
        with asyncio.Runner() as runner:
            transport = httpx.ASGITransport(app=app)
            client = httpx.AsyncClient(transport=transport, base_url="http://one:8083", timeout=30.0)
            runner.run(app.state.api.forwarder.start())
            send = lambda *sent, **options: runner.run(client.request(*sent, **options))  # noqa: E731
            yield recording.ask_everything(recording.Cluster(send, str(tmp_path), "http://one:8083"))
            runner.run(app.state.api.forwarder.stop())
    finally:
        herder.stop()


def test_ours_answers_as_the_genuine_one_but_for_what_is_other_on_purpose(in_memory):
    found = differences(GENUINE, in_memory)
    assert deliberate.unexpected(found) == {}
    assert deliberate.unused(found) == []


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_a_real_worker_answers_as_the_genuine_one_too(kafka, tmp_path):
    properties = {"file.connector.paths": str(tmp_path), "config.unknown.keys": "warn"}
    worker = Worker(tmp_path, kafka.bootstrap, f"g{uuid.uuid4().hex[:8]}", **properties)
    try:
        worker.wait_ready()
        found = recording.record(tmp_path, kafka.bootstrap, worker.url)
        assert worker.end() == 0
    finally:
        worker.kill()
    assert deliberate.unexpected(differences(GENUINE, found)) == {}


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_the_genuine_one_answers_as_it_is_kept(kafka, tmp_path):
    with GenuineConnect(tmp_path / "connect", kafka.bootstrap, libraries("connect")) as connect:
        assert differences(GENUINE, recording.record(tmp_path, kafka.bootstrap, connect.url)) == {}

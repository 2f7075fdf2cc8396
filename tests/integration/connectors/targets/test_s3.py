"""The sink into files, with a real Kafka and a real server of S3: each change is in one file, whatever dies."""

from __future__ import annotations

import json
import uuid

import pytest

from tests.contract import record_targets
from tests.contract.record_targets import *  # noqa: F403 - the suite of all targets of records
from tests.contract.record_targets import QUICK
from tests.record_sinks import Ledger, TaskProcess, Topics, Workload, wait
from tests.s3_faults import FaultProxy
from tests.s3_server import ACCESS_KEY, BUCKET, HOST, SECRET_KEY

pytestmark = [pytest.mark.kafka, pytest.mark.s3]


def files_below(store, path=""):
    """Paths of all files that readers of a folder see, in their order."""
    # In a folder of this machine a listing has the folders too.
    names = store.names(path, "")
    folders = store.folders(path)
    names = [name for name in names if not name.startswith(".") and name not in folders]
    found = [f"{path}/{name}".lstrip("/") for name in names]
    for folder in folders:
        if not folder.startswith(("_", ".")):
            found += files_below(store, f"{path}/{folder}".lstrip("/"))
    return sorted(found)


class Receiver:
    """A reader of the files below one prefix."""

    def __init__(self, server, proxy):
        self.server, self.proxy, self.prefix = server, proxy, uuid.uuid4().hex
        self.store = server.files(self.prefix)
        self._ledger, self._seen = Ledger(), set()

    @property
    def config(self):
        return {
            "connector.class": "s3",
            "warehouse.path": f"s3://{BUCKET}/{self.prefix}",
            "warehouse.s3.endpoint": self.proxy.endpoint,
            "warehouse.s3.path.style.access": "true",
            "warehouse.s3.access.key": ACCESS_KEY,
            "warehouse.s3.secret.key": SECRET_KEY,
            "file.content": "event",
            "file.max.records": "40",
            "file.max.age.ms": "200",
        }

    @property
    def ledger(self):
        for path in files_below(self.store):
            if path not in self._seen:
                self._seen.add(path)
                for line in self.store.read(path).decode().split("\n")[:-1]:
                    self._ledger.take(json.loads(line))
        return self._ledger

    def stop(self):
        self.proxy.plan("busy", lambda _method, _path: True, 1_000_000)

    def start(self):
        self.proxy.faults.clear()

    def close(self):
        assert self.ledger.twice == 0, "a record is in two files"


@pytest.fixture
def receiver(s3):
    with FaultProxy(HOST, s3.port) as proxy:
        made = Receiver(s3, proxy)
        yield made
        made.close()


@pytest.mark.long
def test_a_receiver_that_is_away_is_waited_for(kafka, receiver, tmp_path):
    """Each request is repeated for 20 s before the task tells that it tries again."""
    record_targets.test_a_receiver_that_is_away_is_waited_for(kafka, receiver, tmp_path)


def test_a_record_that_makes_no_folder_is_a_dead_letter_once_and_the_others_are_in_files(kafka, receiver, tmp_path):
    topics = Topics(kafka)
    workload = Workload(topics, 1)
    for number in range(90):
        topics.stream.insert(workload.table, (number, number, None if number == 7 else "secret"))
    topics.flush()
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": topics.letters}
    config = receiver.config | QUICK | letters | {"file.folder.template": "${topic}/a=${value.after.a}"}
    task = TaskProcess(topics, config, (1, 0), tmp_path)
    try:
        wait(lambda: task.numbers.get("dead_letters") == 1 and task.numbers.get("lag_records") == 0, "the dead letter")
        task.stop()
    finally:
        task.kill()
    assert len(topics.read(topics.letters)) == 1
    assert len(receiver.ledger.ids) == 89
    assert "secret" not in task.told()

"""kpops, which leads connectors from a pipeline in a file: deployed, changed, paused, cleaned; on a real source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import psycopg
import pytest
import yaml

from tests.conftest import REQUIRE_PARTS
from tests.genuine.sources import source_config
from tests.integration.one_worker import Worker

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.long, pytest.mark.timeout(600)]

KPOPS = Path(sys.prefix) / "clients" / "bin" / "kpops"
NAME = "shop-orders"


@pytest.fixture
def worker(kafka, tmp_path):
    if not KPOPS.is_file():
        (pytest.fail if REQUIRE_PARTS else pytest.skip)("missing part kpops: `make clients`")
    one = Worker(tmp_path, kafka.bootstrap, f"k{uuid.uuid4().hex[:8]}")
    one.wait_ready()
    yield one
    assert one.end() == 0


class Pipeline:
    """One connector in a `pipeline.yaml`."""

    def __init__(self, folder: Path, worker: Worker, config: dict[str, str]) -> None:
        self.folder, self.config = folder, config
        (folder / "pipelines").mkdir(parents=True)
        told = {"kafka_brokers": worker.bootstrap, "kafka_connect": {"url": worker.url}}
        (folder / "config.yaml").write_text(yaml.safe_dump(told))

    def write(self, state: str | None = None, **config: str) -> None:
        component = {
            "type": "kafka-source-connector", "name": NAME, "prefix": "", "config": {**self.config, **config},
            **({"state": state} if state else {}),
        }  # fmt: skip
        (self.folder / "pipelines" / "pipeline.yaml").write_text(yaml.safe_dump([component]))

    def run(self, command: str, *options: str) -> str:
        done = subprocess.run(
            [str(KPOPS), command, "pipelines/pipeline.yaml", *options],
            cwd=self.folder, capture_output=True, text=True, timeout=120, check=False,
            env={**os.environ, "NO_COLOR": "1", "NO_PROXY": "*", "TERM": "dumb"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


def state_of(worker: Worker) -> tuple[str, list[str]]:
    status = worker.get(f"/connectors/{NAME}/status")
    return status["connector"]["state"], [task["state"] for task in status["tasks"]]


def test_kpops_deploys_changes_pauses_and_cleans_a_source(worker, db, tmp_path):
    db.execute("create table orders(id int primary key, what text); insert into orders values (1, 'a')")
    pipeline = Pipeline(tmp_path / "kpops", worker, source_config(db, worker.group))
    pipeline.write()
    assert "Connector config is valid!" in pipeline.run("deploy", "--dry-run")
    assert worker.get("/connectors") == []
    pipeline.run("deploy", "--execute")
    topic = f"{worker.group}.public.orders"
    worker.wait_state(NAME, "RUNNING")
    worker.wait(lambda: ids(worker, topic) == [1], "the row")
    pipeline.write("paused", **{"poll.interval.ms": "100"})
    pipeline.run("deploy", "--dry-run")
    pipeline.run("deploy", "--execute")
    worker.wait(lambda: state_of(worker) == ("PAUSED", ["PAUSED"]), "the pause")
    assert worker.get(f"/connectors/{NAME}/config")["poll.interval.ms"] == "100"
    pipeline.write("running")
    pipeline.run("deploy", "--execute")
    worker.wait(lambda: state_of(worker) == ("RUNNING", ["RUNNING"]), "the rows again")
    db.execute("insert into orders values (2, 'b')")
    worker.wait(lambda: ids(worker, topic) == [1, 2], "the next row")
    # It is deleted first, then made again, stopped, for its offsets to be reset.
    pipeline.run("clean", "--dry-run")
    assert worker.get("/connectors") == [NAME]
    pipeline.run("clean", "--execute")
    assert worker.get("/connectors") == []
    pipeline.run("deploy", "--execute")
    worker.wait(lambda: ids(worker, topic) == [1, 2, 1, 2], "the rows once more")
    pipeline.run("destroy", "--execute")
    assert worker.get("/connectors") == []


def ids(worker: Worker, topic: str) -> list[int]:
    return [json.loads(message.value())["after"]["id"] for message in worker.read(topic)]


@pytest.fixture
def db(postgres):
    name = postgres.create_database()
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        yield connection
    postgres.drop_database(name)

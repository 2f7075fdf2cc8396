"""The connectors without a database, through a real worker and a real Kafka: killed at random, lines stay lines."""

from __future__ import annotations

import json
import os
import random
import signal
import uuid

import pytest
from cdcworker.schemas.decode import RecordDecoder

from tests import plain_http
from tests.integration import one_worker

pytestmark = pytest.mark.kafka


QUICK = {"task.restart.max": "100", "task.restart.backoff.ms": "10", "task.restart.backoff.max.ms": "50"}
SOURCE = {"connector.class": "FileStreamSource", "batch.size": "50", **QUICK}
SINK = {"connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector", "batch.size": "50", **QUICK}


@pytest.fixture
def worker(kafka, tmp_path):
    made = one_worker.Worker(
        tmp_path, kafka.bootstrap, f"f{uuid.uuid4().hex[:8]}", **{"file.connector.paths": str(tmp_path)}
    )
    made.wait_ready()
    yield made
    made.kill()


def lines(first: int, last: int) -> str:
    return "".join(f"line {n} {'x' * (n % 37)}\n" for n in range(first, last))


def test_a_file_goes_through_a_topic_into_a_file_while_its_tasks_are_killed(worker, tmp_path):
    there, back, topic = tmp_path / "in.txt", tmp_path / "out.txt", f"lines-{worker.group}"
    there.write_text("")
    worker.put("lines-in", {**SOURCE, "file": str(there), "topic": topic})
    worker.put("lines-out", {**SINK, "file": str(back), "topics": topic})
    for name in ("lines-in", "lines-out"):
        worker.wait_state(name, "RUNNING")
    worker.wait(back.exists, "the file")
    dice = random.Random(os.environ.get("PYTEST_SEED", "1"))
    for turn in range(4):
        with there.open("a") as more:
            more.write(lines(turn * 2_000, turn * 2_000 + 2_000))
        task = ("lines-in-0", "lines-out-0")[turn % 2]
        pid = worker.starts(task)[-1]
        size = back.stat().st_size
        if dice.random() < 0.7:
            worker.wait(lambda size=size: back.stat().st_size != size, "progress")
        os.kill(pid, signal.SIGKILL)
        worker.wait(lambda task=task, pid=pid: worker.starts(task)[-1] != pid, "a restart")
    wanted = lines(0, 8_000)
    worker.wait(lambda: back.read_text() == wanted, "all lines")
    worker.wait(lambda: worker.task("lines-out")["metrics"]["lag_records"] == 0, "that nothing waits")
    assert [message.value().decode() for message in worker.read(topic)] == wanted.splitlines()
    assert worker.end() == 0
    assert back.read_text() == wanted


@pytest.mark.sampled(2, "files")
def test_generated_rows_become_lines_of_json(worker, tmp_path):
    back, prefix = tmp_path / "rows.json", f"p{worker.group}"
    worker.put(
        "gen", {"connector.class": "datagen", "topic.prefix": prefix, "max.rows": "200", "rows.per.second": "-1"}
    )
    worker.put(
        "rows-out",
        {
            **SINK,
            "file": str(back),
            "topics.regex": rf"{prefix}\.task.*",
            "value.converter": "io.confluent.connect.avro.AvroConverter",
        },
    )
    worker.wait(lambda: len(back.read_text().splitlines()) == 200 if back.exists() else False, "all rows")
    assert [json.loads(line)["after"]["n"] for line in back.read_text().splitlines()] == list(range(200))


@pytest.mark.sampled(2, "files")
def test_a_generated_stream_has_no_gap_and_no_double_over_kills_and_a_new_worker(worker, kafka, tmp_path):
    prefix = f"p{worker.group}"
    config = {"connector.class": "datagen", "topic.prefix": prefix, "tasks.max": "2", "rows.per.second": "400", **QUICK}
    worker.put("gen", config)
    for _ in range(2):
        for number in range(2):
            task = worker.wait_state("gen", "RUNNING", number)
            records = task["metrics"].get("records", 0)
            worker.wait(lambda n=number, r=records: worker.task("gen", n)["metrics"].get("records", 0) != r, "rows")
            pid = worker.starts(f"gen-{number}")[-1]
            os.kill(pid, signal.SIGKILL)
            worker.wait(lambda n=number, pid=pid: worker.starts(f"gen-{n}")[-1] != pid, "a restart")
    worker.kill()
    second = one_worker.Worker(tmp_path, kafka.bootstrap, worker.group, "w2")
    try:
        for number in range(2):
            second.wait_state("gen", "RUNNING", number)
            second.wait(lambda n=number: second.task("gen", n)["metrics"].get("records"), "rows on the new worker")
        assert second.end() == 0
        decoder = RecordDecoder(second.schemas())
        for number in range(2):
            found = [decoder.decode(m.value())["after"]["n"] for m in second.read(f"{prefix}.task{number}.rows")]
            assert found == list(range(len(found)))
            assert len(found) > 100
    finally:
        second.kill()


@pytest.mark.sampled(2, "files")
def test_files_that_the_operator_has_not_opened_are_not_read(worker, tmp_path):
    config = {**SOURCE, "file": "/etc/hostname", "topic": f"spy-{worker.group}"}
    answer = worker.ask("PUT", "/connectors/spy/config?details=true", config)
    assert answer.status_code == 400
    (said,) = answer.json()["errors"]
    assert (said["code"], said["configPath"]) == ("file.path_not_allowed", "/config/file")


@pytest.mark.sampled(2, "files")
def test_they_are_listed_and_validated_under_connects_names(worker):
    names = {plugin["class"] for plugin in worker.get("/connector-plugins")}
    assert {"datagen", "file", "file-sink", "org.apache.kafka.connect.file.FileStreamSourceConnector"} <= names
    config = {"name": "f", "connector.class": "FileStreamSource", "file": "relative.txt", "topic": "t", "topik": "u"}
    url = f"{worker.url}/connector-plugins/FileStreamSource/config/validate"
    answer = plain_http.put(url, json=config, timeout=30.0).json()
    found = {item["value"]["name"]: item["value"]["errors"] for item in answer["configs"] if item["value"]["errors"]}
    assert found == {
        "file": ["file expects an absolute path"],
        "topik": ["topik is not a known key; did you mean topic?"],
    }

"""The command line as a process against a real worker: a file becomes a running connector, and everything can be looked at."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from cdcworker.worker.devstack.ports import free_ports

from tests.integration import one_worker

pytestmark = pytest.mark.kafka


@pytest.fixture
def worker(kafka, tmp_path):
    process = one_worker.Worker(tmp_path, kafka.bootstrap, f"g{secrets.token_hex(4)}")
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture
def run(worker, tmp_path):
    (nobody,) = free_ports(1)
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "home")}
    environment = {name: value for name, value in environment.items() if name not in ("CDC_URL", "CDC_CONTEXT")}

    program = str(Path(sys.executable).with_name("cdcworker"))

    def invoke(*arguments):
        argv = [program, *arguments]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert "\x1b" not in done.stdout
        return done

    def start(*arguments):
        return subprocess.Popen([program, *arguments], env=environment, stdout=subprocess.PIPE, text=True)

    invoke.start = start

    # The first address is of nobody: every command has to go on to the second.
    assert invoke("context", "add", "t", f"http://127.0.0.1:{nobody}", worker.url).returncode == 0
    return invoke


@pytest.mark.sampled(2, "commands")
def test_a_file_becomes_a_connector_that_runs_and_everything_can_be_looked_at(worker, run, tmp_path):
    path = tmp_path / "gen.json"
    config = {"connector.class": "datagen", "topic.prefix": "gen", "rows.per.second": "50"}
    path.write_text(json.dumps({"name": "gen", "config": config}))
    worker.wait_ready()
    assert run("connector", "validate", str(path)).returncode == 0
    applied = run("connector", "apply", str(path))
    assert (applied.returncode, applied.stdout.splitlines()[0]) == (0, "created gen"), applied.stderr
    assert "answers instead of" in applied.stderr
    worker.wait_state("gen", "RUNNING")
    assert run("connector", "apply", str(path)).stdout == "unchanged gen\n"
    assert run("connector", "diff", str(path), "--exit-code", "--set", "rows.per.second=60").returncode == 1
    assert "gen-0" in run("cluster", "journal").stdout.replace("gen  0", "gen-0")
    assert run("cluster", "workers").stdout.splitlines()[1].split()[:3] == ["w1", "alive", "1"]
    assert run("cluster", "assignments").stdout.splitlines()[1].split()[:4] == ["gen", "0", "RUNNING", "w1"]
    assert "epoch" in run("cluster", "info").stdout
    worker.wait(lambda: run("schemas").stdout.startswith("gen."), "a subject")
    subject = run("schemas").stdout.split()[0]
    assert run("schemas", subject, "--json").returncode == 0
    assert json.loads(run("schemas", subject, "--version", "1").stdout)["type"] == "record"
    described = json.loads(run("connector", "describe", "gen", "--json").stdout)["result"]
    assert described["status"]["connector"]["state"] == "RUNNING"
    with run.start("cluster", "events", "--connector", "gen", "--limit", "1", "--json") as events:
        assert json.loads(events.stdout.readline())["event"] == "hello"
        assert run("connector", "pause", "gen").returncode == 0
        changed = json.loads(events.stdout.readline())
    assert (changed["event"], changed["to"]["state"]) == ("connector.changed", "PAUSED")
    assert events.returncode == 0
    worker.wait_state("gen", "PAUSED")
    assert run("connector", "delete", "gen").stdout == "deleted gen\n"
    assert run("connector", "get", "gen").returncode == 1


@pytest.mark.sampled(2, "commands")
def test_a_worker_is_drained_by_its_id(worker, run):
    worker.wait_ready()
    worker.wait(lambda: worker.get("/v1/cluster")["leader"], "a leader")
    assert run("cluster", "drain").returncode == 2
    assert run("cluster", "drain", "w1").stdout == "draining\n"
    assert worker.process.wait(60) == 0

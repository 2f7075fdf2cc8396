"""A folder of connectors and a real worker: planned, applied, changed, pruned and exported."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration import one_worker

pytestmark = pytest.mark.kafka
SECRET = "canary-92ab30d1"
LABELLED = ("--label", "team=shop")


@pytest.fixture
def worker(kafka, tmp_path):
    process = one_worker.Worker(tmp_path, kafka.bootstrap, f"g{secrets.token_hex(4)}")
    try:
        process.wait_ready()
        process.wait(lambda: process.get("/v1/cluster")["leader"], "a leader")
        yield process
    finally:
        process.kill()


@pytest.fixture
def run(worker, tmp_path):
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "home"), "CDC_URL": worker.url}
    environment.pop("CDC_CONTEXT", None)
    program = str(Path(sys.executable).with_name("cdcworker"))

    def invoke(*arguments, code=0):
        argv = [program, *map(str, arguments)]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, f"{done.stdout}{done.stderr}"
        assert SECRET not in done.stdout + done.stderr
        return json.loads(done.stdout)["result"] if "--json" in arguments else done.stdout + done.stderr

    return invoke


def generator(name, **settings):
    config = {"connector.class": "datagen", "topic.prefix": name.partition("/")[0], "rows.per.second": 5, **settings}
    return {"name": name, "config": config}


def effects(answer):
    return {one["name"]: one["effect"] for one in answer["connectors"]}


def test_a_set_is_applied_changed_pruned_and_exported(worker, run, tmp_path):
    folder, kept, out = tmp_path / "set", tmp_path / "plan.json", tmp_path / "out"
    folder.mkdir()
    one, hook = generator("one"), {"name": "hook", "config": {"connector.class": "http-sink", "topics": "one.rows"}}
    hook["config"] |= {"http.url": "http://127.0.0.1:9/", "http.headers.authorization": SECRET}
    (folder / "all.json").write_text(json.dumps([one, generator("two/ä b"), hook]))

    run("plan", folder, *LABELLED, "--out", kept, "--exit-code", code=1)
    assert SECRET not in kept.read_text()
    assert worker.get("/connectors") == []
    run("apply", folder, *LABELLED, "--plan", kept)
    worker.wait_state("one", "RUNNING")
    assert set(effects(run("apply", folder, *LABELLED, "--yes", "--json")).values()) == {"unchanged"}
    assert "[cli.plan_stale]" in run("apply", folder, *LABELLED, "--plan", kept, code=2)

    starts = len(worker.starts("two/ä b-0"))
    one["config"]["rows.per.second"] = 7
    (folder / "all.json").write_text(json.dumps([one, generator("two/ä b")]))
    wanted = {"one": "changed", "two/ä b": "unchanged", "hook": "deleted"}
    assert effects(run("plan", folder, *LABELLED, "--prune", "--json")) == wanted
    run("apply", folder, *LABELLED, "--prune", "--yes")
    assert worker.get("/connectors") == ["one", "two/ä b"]
    assert worker.get("/connectors/one/config")["rows.per.second"] == "7"
    assert len(worker.starts("two/ä b-0")) == starts

    one["config"]["rows.per.second"] = "many"
    (folder / "all.json").write_text(json.dumps([one, generator("three")]))
    assert "not valid: one" in run("apply", folder, "--yes", code=2)
    assert worker.get("/connectors") == ["one", "two/ä b"]

    exported = run("export", out, "--json")
    assert len(exported["files"]) == len(list(out.iterdir())) == 2
    assert set(effects(run("plan", out, *LABELLED, "--prune", "--exit-code", "--json")).values()) == {"unchanged"}

"""A pod's life as the manifests have it, on real processes: its name, its probes, its end with and without a
preStop hook, its return."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests import plain_http

from .. import one_worker

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).resolve().parents[3]
POD: dict[str, Any] = yaml.safe_load((ROOT / "k8s" / "base" / "statefulset.yaml").read_text())["spec"]["template"][
    "spec"
]
(CONTAINER,) = POD["containers"]
OPENED: dict[str, Any] = yaml.safe_load(
    yaml.safe_load((ROOT / "k8s" / "overlays" / "open" / "kustomization.yaml").read_text())["patches"][1]["patch"]
)
(OPEN_CONTAINER,) = OPENED["spec"]["template"]["spec"]["containers"]
TASKS = 2


def probe(worker: one_worker.Worker, name: str) -> int | None:
    """What the kubelet would see; None: nobody listens."""
    try:
        return plain_http.get(worker.url + CONTAINER[name]["httpGet"]["path"], timeout=5.0).status_code
    except httpx.TransportError:
        return None


def pod(folder: Path, bootstrap: str, group: str, number: int) -> one_worker.Worker:
    """With the variables of the manifest; the file says nothing of its name."""
    name = f"cdcworker-{number}"
    given = {item["name"]: str(item.get("value", "")).replace("$(POD_NAME)", name) for item in CONTAINER["env"]}
    variables = {**given, "POD_NAME": name, "CDC_STATE_DIR": str(folder / name)}
    variables["CDC_REST_ADVERTISED_HOST_NAME"] = "127.0.0.1"
    return one_worker.Worker(folder, bootstrap, group, f"file-{number}", variables=variables)


def pre_stop(worker: one_worker.Worker) -> None:
    """The hook's own words, at this worker's address. Only the open overlay has one: elsewhere it would need a token."""
    python, flag, program = OPEN_CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert (python, flag) == ("python", "-c")
    here = program.replace("http://127.0.0.1:8083", worker.url)
    assert here != program
    done = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


class Watch(threading.Thread):
    """Probes until nobody listens any more."""

    def __init__(self, worker: one_worker.Worker) -> None:
        super().__init__(daemon=True)
        self.worker = worker
        self.seen: list[tuple[int | None, int | None]] = []

    def run(self) -> None:
        while self.worker.process.poll() is None:
            self.seen.append((probe(self.worker, "livenessProbe"), probe(self.worker, "readinessProbe")))


@pytest.mark.parametrize(
    "hook", [pytest.param(True, id="open", marks=pytest.mark.long), pytest.param(False, id="base")]
)
def test_a_pod_that_is_replaced_hands_over_is_alive_and_not_ready_meanwhile_and_comes_back_under_its_name(
    kafka, tmp_path, hook
):
    group = f"p{uuid.uuid4().hex[:8]}"
    pods = [pod(tmp_path, kafka.bootstrap, group, number) for number in range(2)]
    stays, goes = pods
    try:
        for one in pods:
            one.wait(lambda one=one: probe(one, "startupProbe") == 200, "startup")
            one.wait(lambda one=one: probe(one, "readinessProbe") == 200, "readiness")
        # Tasks that do not stop by themselves: the drain lasts long enough to be looked at.
        slow = {"rows.per.second": "20", "tasks.max": str(TASKS), "hang.in": "stop"}
        stays.put("gen", {"connector.class": "datagen", "topic.prefix": group, **slow})
        stays.wait(lambda: holders(stays) == {"cdcworker-0", "cdcworker-1"}, "tasks on both")
        watch = Watch(goes)
        watch.start()
        if hook:
            pre_stop(goes)
        code = goes.end()  # SIGTERM comes after the hook; the grace period is far longer than this waits
        watch.join(30)
        assert code == 0, goes.log.read_text()[-5_000:]
        assert {alive for alive, _ in watch.seen} <= {200, None}, "a pod that drains was killed by its liveness probe"
        ready = [ready for _, ready in watch.seen if ready is not None]
        assert 503 in ready, "it took requests until its end"
        assert 200 not in ready[ready.index(503) :]
        stays.wait(lambda: holders(stays) == {"cdcworker-0"}, "its tasks on the other")
        pods[1] = pod(tmp_path, kafka.bootstrap, group, 1)
        stays.wait(lambda: holders(stays) == {"cdcworker-0", "cdcworker-1"}, "tasks on both again")
        told = {one["id"]: one["alive"] for one in stays.get("/v1/cluster")["workers"]}
        assert told == {"cdcworker-0": True, "cdcworker-1": True}
    finally:
        for one in pods:
            one.kill()


def holders(worker: one_worker.Worker) -> set[str]:
    tasks = worker.get("/v1/cluster")["tasks"]
    run = len(tasks) == TASKS and all(task["state"] == "RUNNING" for task in tasks)
    return {task["worker"] for task in tasks} if run else set()


@pytest.mark.long
def test_an_outage_of_the_broker_is_no_reason_to_restart_a_pod(kafka, tmp_path):
    one = pod(tmp_path, kafka.bootstrap, f"p{uuid.uuid4().hex[:8]}", 0)
    try:
        one.wait(lambda: probe(one, "readinessProbe") == 200, "readiness")
        kafka.pause()
        try:
            one.wait(lambda: "no acknowledged lease" in one.log.read_text(), "the outage is felt")
            seconds = CONTAINER["livenessProbe"]["periodSeconds"] * CONTAINER["livenessProbe"]["failureThreshold"]
            assert seconds >= 30
            assert [probe(one, "livenessProbe") for _ in range(CONTAINER["livenessProbe"]["failureThreshold"])] == [
                200
            ] * 6
        finally:
            kafka.resume()
        one.wait(lambda: probe(one, "readinessProbe") == 200, "readiness again")
        assert one.end() == 0
    finally:
        one.kill()

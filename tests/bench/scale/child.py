"""One production herder whose task processes are stubbed at their pipe; commands on stdin, what happens on stdout.

In: `{"put": name, "tasks": n, "config": {…}}`. Out: `{"ready": true}`, `{"start": task, "epoch": n}`,
`{"stop": task}`, `{"leads": bool, "workers": n}`, `{"put": name, "outcome": …}`. With a file name as last argument the herder's
thread is profiled and the profile written there when stdin ends.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from cdcworker.coordinator.core.events import TaskExited, TaskReport
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.coordinator.model import AssignedTask, Connector, PutConnector, Reply
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.herder.herder import Herder

WATCH_S = 0.05
METRICS_S = 1.0
_out = threading.Lock()


def say(message: Mapping[str, Any]) -> None:
    with _out:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


class Pipe:
    """Stands where a worker writes to task processes: says what they would say, and their numbers each second."""

    failure: BaseException | None = None

    def open(self, post: Callable[[Any], None]) -> None:
        self._post = post
        self._running: dict[AssignedTask, Any] = {}
        threading.Thread(target=self._report, name="pipe", daemon=True).start()

    def _report(self) -> None:
        pause = threading.Event()
        while not pause.wait(METRICS_S):
            for task in list(self._running):
                self._post(TaskReport(task, metrics={"records": 1, "events_per_s": 1.0}))

    def start(self, task: AssignedTask, spec: Any) -> None:
        self._running[task] = spec
        say({"start": str(task.id), "epoch": task.task_epoch})
        self._post(TaskReport(task, "RUNNING"))

    def stop(self, task: AssignedTask) -> None:
        if self._running.pop(task, None) is not None:
            say({"stop": str(task.id), "epoch": task.task_epoch})
            self._post(TaskExited(task, 0))

    kill = stop

    def send(self, task: AssignedTask, message: Any) -> None: ...

    def broadcast(self, message: Any) -> None: ...

    def close(self, timeout_s: float) -> None: ...


class Profiled(Herder):
    profile: cProfile.Profile | None = None

    def run(self) -> None:
        if self.profile is None:
            super().run()
        else:
            self.profile.runcall(super().run)


def shares(connector: Connector, _topics: frozenset[str]) -> Sequence[dict[str, str]]:
    return [{"share": str(n)} for n in range(int(connector.config["tasks.max"]))]


def watch(herder: Herder) -> None:
    pause, last = threading.Event(), (False, 0)
    while not pause.wait(WATCH_S):
        view = herder.view()
        now = view.is_leader, len(view.workers)
        if now != last:
            last = now
            say({"leads": now[0], "workers": now[1]})


def put(herder: Herder, command: Mapping[str, Any]) -> None:
    name = command["put"]

    def answered(future: Future[Reply]) -> None:
        outcome = str(future.exception()) if future.exception() else future.result().outcome
        say({"put": name, "outcome": outcome})

    config = {"tasks.max": str(command["tasks"]), **command["config"]}
    herder.submit(PutConnector(name, config, kind="source")).add_done_callback(answered)


def main() -> None:
    bootstrap, group, worker, session = sys.argv[1:5]
    config = HerderConfig(
        kafka={"bootstrap.servers": bootstrap},
        group_id=group,
        worker_id=worker,
        url="",
        topics=TopicNames.of_group(group),
        session_timeout_s=float(session),
    )
    herder = Profiled(config, shares, Pipe())
    herder.profile = cProfile.Profile() if len(sys.argv) > 5 else None
    herder.start()
    herder.wait_started(120)
    say({"ready": True})
    threading.Thread(target=watch, args=(herder,), name="watch", daemon=True).start()
    for line in sys.stdin:
        put(herder, json.loads(line))
    herder.stop()
    if herder.profile is not None:
        with open(sys.argv[5], "w") as file:
            pstats.Stats(herder.profile, stream=file).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()

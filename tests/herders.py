"""Herders for tests: a launcher that stands in for task processes, and a program that runs one herder until killed."""

from __future__ import annotations

import contextlib
import json
import select
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cdcworker.coordinator.core.events import TaskExited, TaskReport
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.coordinator.model import AssignedTask, Connector, PutConnector, Reply, Request, TaskId, View
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.herder.herder import Herder

SESSION_S = 6.0


def eventually(condition: Callable[[], Any], timeout_s: float = 40.0, what: str = "condition") -> Any:
    """The first true answer; fails with the last one when there is none in time."""
    # Not above: this module is a program too, and runs without its package.
    from tests.waiting import Patience

    patience = Patience(timeout_s)
    while not (answer := condition()):
        assert not patience.is_over(), f"{what} did not come true in {timeout_s} s, last: {answer!r}"
        patience.pause()
    return answer


class StubLauncher:
    """Tasks that obey at once and are nothing but an entry in `running`."""

    failure: BaseException | None = None

    def __init__(self) -> None:
        self.running: dict[AssignedTask, Any] = {}
        self.history: list[tuple[str, TaskId]] = []
        self.leases: list[float] = []
        self._lock = threading.RLock()

    def open(self, post: Callable[[Any], None]) -> None:
        self._post = post

    def start(self, task: AssignedTask, spec: Any) -> None:
        with self._lock:
            self.history.append(("start", task.id))
            self.running[task] = spec
        self._post(TaskReport(task, "PAUSED" if spec.paused else "RUNNING"))

    def send(self, task: AssignedTask, message: Any) -> None:
        if message["type"] in ("pause", "resume"):
            self._post(TaskReport(task, "PAUSED" if message["type"] == "pause" else "RUNNING"))

    def broadcast(self, message: Any) -> None:
        self.leases.append(message["valid_s"])

    def stop(self, task: AssignedTask) -> None:
        with self._lock:
            if self.running.pop(task, None) is None:
                return
            self.history.append(("stop", task.id))
        self._post(TaskExited(task, 0))

    kill = stop

    def close(self, timeout_s: float) -> None:
        for task in list(self.running):
            self.stop(task)

    def starts(self) -> list[TaskId]:
        return [task for what, task in self.history if what == "start"]


def shares(connector: Connector, _topics: frozenset[str]) -> Sequence[dict[str, str]]:
    return [{"share": str(n)} for n in range(int(connector.config["tasks.max"]))]


def herder(bootstrap: str, group: str, worker: str, launcher: StubLauncher | None = None, **more: Any) -> Herder:
    settings: dict[str, Any] = {
        "kafka": {"bootstrap.servers": bootstrap},
        "group_id": group,
        "worker_id": worker,
        "url": f"http://{worker}:8083",
        "topics": TopicNames.of_group(group),
        "offsets_partitions": 3,
        "session_timeout_s": SESSION_S,
    }
    config = HerderConfig(**{**settings, **more})
    started = Herder(config, shares, launcher or StubLauncher())
    started.start()
    return started


def accepted(one: Herder, request: Request) -> Reply:
    """Returns the answer to a request once it is done. A worker that joins at this moment makes the broker refuse the
    leader's proof once: whoever asked asks again."""

    def done() -> Reply | None:
        reply = one.submit(request).result(60)
        return reply if reply.outcome == "ok" else None

    reply: Reply = eventually(done, 60, "a leader that takes the request")
    return reply


@contextlib.contextmanager
def starting(bootstrap: str, group: str) -> Iterator[Callable[..., Herder]]:
    """Makes herders of one group by name, and ends them all; none may have failed."""
    started = []

    def make(worker: str, launcher: StubLauncher | None = None) -> Herder:
        one = herder(bootstrap, group, worker, launcher)
        started.append(one)
        assert one.wait_started(30)
        return one

    yield make
    for one in started:
        one.stop()
        assert one.failure is None


def placement(view: View) -> dict[TaskId, str]:
    """Where each running task runs."""
    return {task: status.worker_id for task, status in view.statuses.items() if status.state == "RUNNING"}


def main() -> None:
    """One herder until it is killed; each line `name tasks` on standard input makes a connector."""
    more = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
    one = herder(*sys.argv[1:4], **more)
    one.wait_started(30)
    for line in sys.stdin:
        name, tasks = line.split()
        request = PutConnector(name, {"tasks.max": tasks}, kind="source")
        # A member that joins at this moment costs the leader its term: it asks again, as Connect's clients do.
        while one.submit(request).result(60).outcome in ("no_leader", "timeout"):
            select.select([], [], [], 0.05)
    one.join()


if __name__ == "__main__":
    main()

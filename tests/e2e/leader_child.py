"""One herder of a group, without tasks: while it leads it changes connectors as fast as it may, until it is killed."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cdcworker.coordinator.core.events import TaskExited, TaskReport
from cdcworker.coordinator.kafka.internal_topics import TopicNames
from cdcworker.coordinator.model import AssignedTask, Connector, PutConnector
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.herder.config import HerderConfig
from cdcworker.worker.herder.herder import Herder

CONNECTORS = 4
PAUSE_S = 0.02


class NoTasks:
    """Tasks that run as soon as they are asked for, and are nothing."""

    failure: BaseException | None = None

    def open(self, post: Callable[[Any], None]) -> None:
        self._post = post
        self._running: set[AssignedTask] = set()

    def start(self, task: AssignedTask, spec: Any) -> None:
        self._running.add(task)
        self._post(TaskReport(task, "RUNNING"))

    def stop(self, task: AssignedTask) -> None:
        if task in self._running:
            self._running.remove(task)
            self._post(TaskExited(task, 0))

    kill = stop

    def send(self, task: AssignedTask, message: Any) -> None: ...

    def broadcast(self, message: Any) -> None: ...

    def close(self, timeout_s: float) -> None: ...


def one_task(_connector: Connector, _topics: frozenset[str]) -> Sequence[Mapping[str, str]]:
    return [{}]


def herder(bootstrap: str, group: str, worker: str, session_s: float) -> Herder:
    config = HerderConfig(
        kafka={"bootstrap.servers": bootstrap},
        group_id=group,
        worker_id=worker,
        url="",
        topics=TopicNames.of_group(group),
        offsets_partitions=1,
        status_partitions=1,
        session_timeout_s=session_s,
    )
    return Herder(config, one_task, NoTasks())


def main() -> None:
    bootstrap, group, worker, session = sys.argv[1:5]
    one = herder(bootstrap, group, worker, float(session))
    one.start()
    one.wait_started(60)
    number = 0
    while one.is_alive():
        time.sleep(PAUSE_S)
        if not one.view().is_leader:
            continue
        number += 1
        request = PutConnector(f"c{number % CONNECTORS}", {"tasks.max": "1", "n": str(number)}, kind="source")
        with contextlib.suppress(CdcError, TimeoutError):
            one.submit(request).result(1.0)


if __name__ == "__main__":
    main()

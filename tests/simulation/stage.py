"""Builds a simulated cluster and runs production code in it."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from cdcworker.coordinator.core import supervisor
from cdcworker.schemas.threads import ThreadDeaths

from .checks import remove_member
from .clients import AdminClient, Client, Cluster, Consumer, Producer
from .engine import World
from .faults import AWAY_S_MAX, CHECK_EVERY_S
from .shims import installed
from .sources import Database, SinkConnector, Warehouse
from .workers import NAMES, OFFSETS_PARTITIONS, STATUS_PARTITIONS, Setting, Sim, boot_at

logger = logging.getLogger(__name__)


class _Logged(logging.Handler):
    """Adds production's log lines to the trace."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if self._world.current is None or self._world.current.alive:
            print(f"{self._world.now:.6f} log {self.format(record)}")


class _Watchdog:
    """Replaces the client watchdog: calls of the simulated client always return."""

    def __init__(self, *_args: Any) -> None:
        pass

    def start(self) -> _Watchdog:
        return self

    @contextlib.contextmanager
    def guard(self, _timeout_s: float, _doing: str) -> Iterator[None]:
        yield

    def release(self) -> None:
        pass


def _partitions(*_args: Any, **_kwargs: Any) -> dict[str, int]:
    return {
        NAMES.configs: 1,
        NAMES.offsets: OFFSETS_PARTITIONS,
        NAMES.status: STATUS_PARTITIONS,
        NAMES.schemas: 1,
        NAMES.coordination: 1,
    }


@contextlib.contextmanager
def stage(seed: int, setting: Setting, trace: Callable[[str], None] | None = None) -> Iterator[Sim]:
    """A world with a broker, a database and a warehouse, and no worker yet."""
    world = World(seed, trace)
    cluster = Cluster(world)
    for name, count in _partitions().items():
        cluster.broker.create(name, count)
    sim = Sim(world, cluster, Database(world), Warehouse(world), setting)
    SinkConnector.warehouse = sim.warehouse
    Client.cluster = cluster
    was_enabled = gc.isenabled()
    gc.disable()  # when garbage is found must not depend on what ran before
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL if trace is None else logging.INFO)
    handler = _Logged(world)
    if trace is not None:
        logging.getLogger("cdcworker").addHandler(handler)
    try:
        with installed(world, _replaced(sim)):
            yield sim
    finally:
        logging.getLogger("cdcworker").removeHandler(handler)
        logging.disable(disabled)
        if was_enabled:
            gc.enable()


def _replaced(sim: Sim) -> dict[tuple[str, str], Any]:
    plugin = SimpleNamespace(load=lambda: SinkConnector)
    restart = supervisor._restart

    def counted(transition: Any, command: Any) -> None:
        sim.executed[transition.me.boot_id, command.id] += 1
        if sim.executed[transition.me.boot_id, command.id] > 1:
            sim.world.violate("commands", f"{command.id} was executed twice by {transition.me.worker_id}")
        restart(transition, command)

    setting = sim.setting
    return {
        ("cdcworker.coordinator.kafka.clients", "Producer"): Producer,
        ("cdcworker.coordinator.kafka.clients", "Consumer"): Consumer,
        ("cdcworker.coordinator.kafka.clients", "AdminClient"): AdminClient,
        ("cdcworker.worker.herder.backends", "ensure_topics"): _partitions,
        ("cdcworker.worker.source.kafka_ports", "ClientWatchdog"): _Watchdog,
        # Threads of the simulation are killed with their workers: none of this process has died.
        ("cdcworker.schemas.threads", "THREAD_DEATHS"): ThreadDeaths(),
        ("cdcworker.worker.herder.backends", "members"): lambda *_args: (),
        ("cdcworker.worker.herder.backends", "remove_member"): lambda _properties, **asked: remove_member(sim, asked),
        ("cdcworker.worker.task.sink_runner", "lookup"): lambda _name: plugin,
        ("cdcworker.worker.source.task_identity", "lookup"): lambda _name: plugin,
        # It looks through all that the process of the simulation holds, at each start of each task.
        ("cdcworker.worker.source.runner", "gc"): SimpleNamespace(collect=lambda: 0),
        ("cdcworker.worker.herder.herder", "IDLE_WAIT_S"): setting.tick_s,
        ("cdcworker.worker.herder.herder", "BUSY_WAIT_S"): setting.tick_s,
        ("cdcworker.worker.herder.herder", "TICK_S"): setting.tick_s,
        ("cdcworker.worker.herder.herder", "VIEW_EVERY_S"): 1.0,
        ("cdcworker.worker.herder.log_tail", "AWAY_S_MAX"): AWAY_S_MAX,
        ("cdcworker.worker.herder.log_tail", "CHECK_EVERY_S"): CHECK_EVERY_S,
        ("cdcworker.worker.source.start_reader", "WINDOWS"): (4, 40),
        ("cdcworker.worker.herder.liveness_probe", "_boot_at"): lambda url, *_more: boot_at(sim, url),
        ("cdcworker.coordinator.core.supervisor", "_restart"): counted,
    }

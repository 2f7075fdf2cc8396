"""How is each kind of fault made? Each waits for nothing but that what it has ended is started again, never for calm."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.e2e.cluster import SESSION_S, Worker, children, descendants, names_task, paused, send, wait

from .bank import TABLES, run
from .schedule import Fault
from .stack import SINKS, SOURCES, SPARK_SINKS, Stack

GONE_S: Final = 120.0
DRAINED_S: Final = 120.0
PATIENT: Final = 2.5
"""Sessions that a pause lasts which is meant to outlive them."""
FORK_SERVER: Final = "cdcworker.worker.task.fork_server"


class NobodyThereError(Exception):
    """What the fault is meant for is not there at the moment: after an earlier fault it is on its way."""


class Faults:
    """Makes faults on the parts of a stack, in the thread that has started them."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._ways: Mapping[str, Callable[[Fault], None]] = {
            "kill source task": lambda fault: send([self._task(fault, SOURCES)], signal.SIGKILL),
            "pause source task": lambda fault: self._pause([self._task(fault, SOURCES)], fault.hold_s),
            "kill sink task": lambda fault: send([self._task(fault, SINKS)], signal.SIGKILL),
            "pause sink task": lambda fault: self._pause([self._task(fault, SINKS)], fault.hold_s),
            "kill Spark JVM": lambda fault: send([self._jvm(fault)], signal.SIGKILL),
            "pause Spark JVM": lambda fault: self._pause([self._jvm(fault)], fault.hold_s),
            "kill worker": lambda fault: self._kill(self._worker(fault), tree=False),
            "kill worker tree": lambda fault: self._kill(self._worker(fault), tree=True),
            "pause worker": lambda fault: self._freeze(self._worker(fault), fault.hold_s, tree=False),
            "pause worker tree": lambda fault: self._freeze(self._worker(fault), fault.hold_s, tree=True),
            "pause worker past the session": lambda fault: self._freeze(self._worker(fault), _long(), tree=False),
            "pause worker tree past the session": lambda fault: self._freeze(self._worker(fault), _long(), tree=True),
            "wake tasks before their worker": self._wake_tasks_first,
            "kill leader": lambda _: self._kill(self._leader(), tree=False),
            "pause leader": lambda fault: self._freeze(self._leader(), fault.hold_s, tree=False),
            "pause leader past the session": lambda _: self._freeze(self._leader(), _long(), tree=False),
            "kill fork server": lambda fault: send([self._fork_server(fault)], signal.SIGKILL),
            "pause fork server": lambda fault: self._pause([self._fork_server(fault)], fault.hold_s),
            "drain worker": lambda fault: self._drain(self._worker(fault)),
            "rolling restart": self._roll,
            "kill Kafka": self._kill_kafka,
            "pause Kafka": lambda fault: self._pause([stack.kafka.pid], fault.hold_s),
            "kill PostgreSQL": self._kill_postgres,
            "terminate walsender": self._terminate_walsender,
            "kill MariaDB": self._kill_mariadb,
            "kill dump connection": self._kill_dump,
            "restart connector": self._restart,
            "pause connector": lambda fault: self._halt(fault, "pause"),
            "stop connector": lambda fault: self._halt(fault, "stop"),
            "change config": self._change,
            "snapshot": self._snapshot,
        }

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(self._ways)

    def make(self, fault: Fault) -> None:
        """Returns when it is over. NobodyThereError where there was nobody to hit."""
        self._ways[fault.kind](fault)

    # -- who is hit ---------------------------------------------------------------------------------------------------

    def _worker(self, fault: Fault) -> Worker:
        return fault.one_of(list(self._stack.cluster.workers.values()))

    def _leader(self) -> Worker:
        return self._stack.cluster.leader()

    def _task(self, fault: Fault, connectors: tuple[str, ...]) -> int:
        name = fault.one_of(connectors)
        below = [pid for worker in self._stack.cluster.workers.values() for pid in descendants(worker.pid)]
        found = [pid for pid in below if names_task(pid, name, 0)]
        if not found:
            raise NobodyThereError(name)
        return found[0]

    def _jvm(self, fault: Fault) -> int:
        task = self._task(fault, SPARK_SINKS)
        found = [pid for pid in descendants(task) if _program(pid) == "java"]
        if not found:
            raise NobodyThereError("a JVM")
        return found[0]

    def _fork_server(self, fault: Fault) -> int:
        found = [pid for pid, line in children(self._worker(fault).pid).items() if FORK_SERVER in line]
        if not found:
            raise NobodyThereError("a fork server")
        return found[0]

    # -- processes ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _pause(pids: list[int], seconds: float) -> None:
        with paused(pids):
            _rest(seconds)

    def _kill(self, victim: Worker, *, tree: bool) -> None:
        orphans = descendants(victim.pid)
        send([victim.pid, *orphans] if tree else [victim.pid], signal.SIGKILL)
        wait("the victim is gone", lambda: not victim.process.alive(), GONE_S)
        wait("its tasks die with it", lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in orphans), GONE_S)
        del self._stack.cluster.workers[victim.id]
        self._stack.start_worker(victim.id)

    def _freeze(self, victim: Worker, seconds: float, *, tree: bool) -> None:
        with self._away(victim), paused(victim.tree() if tree else [victim.pid]):
            _rest(seconds)

    def _wake_tasks_first(self, fault: Fault) -> None:
        victim = self._worker(fault)
        pids = victim.tree()
        tasks = [pid for pid in pids if any(names_task(pid, name, 0) for name in (*SOURCES, *SINKS))]
        with self._away(victim), paused(pids):
            _rest(_long())
            send(tasks, signal.SIGCONT)
            _rest(fault.hold_s / 10)

    @contextlib.contextmanager
    def _away(self, victim: Worker) -> Iterator[None]:
        """Nobody asks the victim meanwhile; afterwards it has to answer again."""
        workers = self._stack.cluster.workers
        del workers[victim.id]
        try:
            yield
        finally:
            workers[victim.id] = victim
        wait("the woken worker is back", lambda: self._stack.cluster.healthy(victim), GONE_S)

    def _drain(self, victim: Worker) -> None:
        del self._stack.cluster.workers[victim.id]
        code = victim.process.stop(timeout_s=DRAINED_S)
        assert code == 0, f"worker {victim.id} drained with exit code {code}"
        self._stack.start_worker(victim.id)

    def _roll(self, _: Fault) -> None:
        for worker in list(self._stack.cluster.workers.values()):
            self._drain(worker)

    # -- servers ------------------------------------------------------------------------------------------------------

    def _kill_kafka(self, fault: Fault) -> None:
        self._stack.kafka.kill()
        _rest(fault.hold_s)
        self._stack.kafka.start()

    def _kill_postgres(self, fault: Fault) -> None:
        self._stack.postgres.kill()
        _rest(fault.hold_s)
        self._stack.postgres.start()

    def _kill_mariadb(self, fault: Fault) -> None:
        self._stack.mariadb.kill()
        _rest(fault.hold_s)
        self._stack.mariadb.start()

    def _terminate_walsender(self, _: Fault) -> None:
        ask = "select pg_terminate_backend(active_pid) from pg_replication_slots where active"
        with contextlib.closing(self._stack.banks()["postgres"].connect()) as connection:
            if not run(connection, ask):
                raise NobodyThereError("a walsender")

    def _kill_dump(self, _: Fault) -> None:
        ask = "select id from information_schema.processlist where command like 'Binlog Dump%'"
        found = self._stack.mariadb.ask(ask)
        if not found:
            raise NobodyThereError("a dump")
        self._stack.mariadb.ask(f"kill {found[0][0]}")

    # -- requests -----------------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: object = None) -> None:
        answer = self._stack.cluster.rest(method, path, body)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"

    def _restart(self, fault: Fault) -> None:
        self._ask("POST", f"/connectors/{fault.one_of((*SOURCES, *SINKS))}/restart?includeTasks=true")

    def _halt(self, fault: Fault, way: str) -> None:
        name = fault.one_of((*SOURCES, *SINKS))
        self._ask("PUT", f"/connectors/{name}/{way}")
        _rest(fault.hold_s)
        self._ask("PUT", f"/connectors/{name}/resume")

    def _change(self, fault: Fault) -> None:
        """A key of each kind of connector whose value does not change what is delivered."""
        name = fault.one_of((*SOURCES, *SINKS))
        key = (
            "batch.commit.ms.max" if name in SOURCES else "trigger.interval.ms" if name in SPARK_SINKS else "batch.size"
        )
        self._ask("PATCH", f"/connectors/{name}/config", {key: str(200 + fault.number % 800)})

    def _snapshot(self, fault: Fault) -> None:
        name = fault.one_of(SOURCES)
        tables = [f"{self._stack.schema(name)}.{table}" for table in TABLES]
        self._ask("POST", f"/v1/connectors/{name}/snapshots", {"tables": tables})


def _rest(seconds: float) -> None:
    threading.Event().wait(seconds)


def _long() -> float:
    return PATIENT * SESSION_S


def _program(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    return ""

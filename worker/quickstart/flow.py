"""The course of the demo: submit, load, kill the leader, stop the load, prove."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cdcworker.schemas.errors import CdcError
from cdcworker.worker.quickstart import catch_up, proof
from cdcworker.worker.quickstart.cluster_client import ClusterClient
from cdcworker.worker.quickstart.connectors import SINK, Endpoints
from cdcworker.worker.quickstart.errors import LAGS, LOAD_FAILED, NOT_SUBMITTED
from cdcworker.worker.quickstart.loader import LoadGenerator
from cdcworker.worker.quickstart.monitor import ClusterMonitor, ClusterSnapshot
from cdcworker.worker.quickstart.screen import Screen
from cdcworker.worker.quickstart.shop import SOURCE

TICK_S = 0.1
FIRST_ROWS_TIMEOUT_S = 240.0
TAKEOVER_TIMEOUT_S = 90.0
CATCH_UP_TIMEOUT_S = 240.0


@dataclass(slots=True)
class Demo:
    """One run against parts that are running; `check` raises when one of them has ended."""

    endpoints: Endpoints
    loader: LoadGenerator
    monitor: ClusterMonitor
    screen: Screen
    check: Callable[[], None] = field(default=lambda: None)
    timings_s: dict[str, float] = field(default_factory=dict)

    def submit(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        """Submits the connectors over REST to whichever worker answers."""
        workers = ClusterClient(self.endpoints.workers)
        try:
            for name, config in configs.items():
                workers.submit(name, config, self.check)
                self.screen.note(f"submitted {name}: PUT /connectors/{name}/config")
        finally:
            workers.close()

    def run_load(self) -> None:
        """Starts the load once the source runs, and waits until its first rows are in the warehouse."""
        self._until("the first event", lambda: self.snapshot.in_topics > 0, FIRST_ROWS_TIMEOUT_S)
        self.screen.show(self.snapshot, self.loader.workload, now=True)
        self._mark("first_event", "first event on screen")
        self.loader.start()
        self._until("the first rows in the warehouse", lambda: self.snapshot.warehouse_total > 0, FIRST_ROWS_TIMEOUT_S)
        self._mark("first_row", "first rows in the warehouse")

    def wait_for_load(self, seconds: float = 0.0, transactions: int = 0) -> None:
        """Lets the load run for a time and up to a number of transactions."""
        end = time.monotonic() + seconds
        workload = self.loader.workload
        self._until(
            f"{transactions} transactions of the load",
            lambda: time.monotonic() >= end and workload.transactions >= transactions,
            seconds + 300,
        )

    def kill_leader(self, kill: Callable[[str], None]) -> None:
        """Kills the leading worker; returns when another one leads and every task runs elsewhere."""
        self._until("a leader", lambda: bool(self.snapshot.leader), TAKEOVER_TIMEOUT_S)
        killed = self.snapshot.leader
        task_count = sum(task.worker == killed for task in self.snapshot.tasks)
        self.screen.note(f"killing the leading worker {killed} (SIGKILL), which runs {task_count} tasks")
        kill(killed)
        began = time.monotonic()
        self.loader.release()
        self._until(
            "another leader", lambda: self.snapshot.leader not in ("", killed), TAKEOVER_TIMEOUT_S, tasks_matter=False
        )
        self.timings_s["new_leader"] = time.monotonic() - began
        self.screen.note(f"{self.snapshot.leader} leads after {self.timings_s['new_leader']:.1f} s")
        self._until(
            "every task runs on a living worker",
            lambda: self.snapshot.all_run((SOURCE, SINK), without=killed),
            TAKEOVER_TIMEOUT_S,
            tasks_matter=False,
        )
        self.timings_s["takeover"] = time.monotonic() - began
        self.screen.note(f"took over: every task runs again {self.timings_s['takeover']:.1f} s after the kill")

    def prove(self, sabotage: Callable[[], None] | None = None) -> list[proof.TableResult]:
        """Compares both sides; called when the load has ended."""
        self._alive()
        self.screen.note("the load has stopped; waiting until the warehouse has everything")
        began = time.monotonic()
        places = self.endpoints
        source = places.shop.state()
        deadline = catch_up.CatchUpDeadline(CATCH_UP_TIMEOUT_S, on_wait=self._tick)
        position = places.shop.wait_until_read(places.kafka, places.workers, source, deadline)
        offsets = catch_up.next_offsets(places.kafka, places.topics)
        catch_up.wait_for_ledger(places.warehouse, SINK, offsets, deadline)
        self.timings_s["caught_up"] = time.monotonic() - began
        self.screen.note(f"caught up with log position {position} after {self.timings_s['caught_up']:.1f} s")
        if sabotage is not None:
            sabotage()
            self.screen.note("sabotage: one row of the warehouse was changed behind the sink's back")
        return places.shop.compare(places.warehouse, source)

    def idle(self) -> None:
        """Refreshes the screen until it is interrupted."""
        while True:
            self._tick()
            time.sleep(TICK_S)

    @property
    def snapshot(self) -> ClusterSnapshot:
        return self.monitor.snapshot

    def _mark(self, name: str, text: str) -> None:
        self.timings_s[name] = self.screen.seconds
        self.screen.note(f"{text} after {self.screen.seconds:.1f} s")

    def _until(self, what: str, done: Callable[[], bool], timeout_s: float, *, tasks_matter: bool = True) -> None:
        end = time.monotonic() + timeout_s
        while not done():
            self._tick()
            if tasks_matter and (failed := self.snapshot.failed()) is not None:
                raise CdcError(NOT_SUBMITTED, f"{failed.connector}/{failed.number} has failed: {failed.error}")
            if time.monotonic() > end:
                raise CdcError(LAGS, f"{what}: not within {timeout_s:.0f} s")
            time.sleep(TICK_S)

    def _tick(self) -> None:
        self._alive()
        self.screen.show(self.snapshot, self.loader.workload)

    def _alive(self) -> None:
        self.check()
        if self.loader.error is not None:
            raise CdcError(LOAD_FAILED, f"the load ended: {type(self.loader.error).__name__}")


def plant_difference(dsn: str, schema: str) -> None:
    """Changes one value in the warehouse."""
    import psycopg
    from psycopg import sql

    text = "UPDATE {0} SET status = status || '?' WHERE id = (SELECT min(id) FROM {0})"
    with psycopg.connect(dsn) as connection:
        statement = sql.SQL(text).format(sql.Identifier(schema, "orders"))
        if connection.execute(statement).rowcount != 1:
            raise CdcError(LOAD_FAILED, "no row of the warehouse could be changed")


def summary(results: list[proof.TableResult], operations: Mapping[str, int], specials: Mapping[str, int]) -> str:
    """Returns what the load did and what the comparison found, as text."""
    lines = ["changes of the load (rows):"]
    lines += [f"  {name:<24}{operations.get(name, 0):>10,}" for name in ("insert", "update", "delete")]
    lines += [f"    {name:<22}{number:>10,}" for name, number in sorted(specials.items())]
    lines.append("")
    lines.append(
        f"{'table':<12}{'rows at the source':>20}{'in the warehouse':>20}  {'checksum (source, warehouse)':<36}verdict"
    )
    for result in results:
        lines.append(_line(result))
    different = [result.table for result in results if not result.equal]
    verdict = f"DIFFERENT: {', '.join(different)} differ" if different else "every table is equal on both sides"
    return "\n".join([*lines, "", verdict])


def _line(result: proof.TableResult) -> str:
    warehouse: Any = result.warehouse
    sums = f"{result.source.sum:016x} " + (f"{warehouse.sum:016x}" if warehouse else "-")
    verdict = "equal" if result.equal else "differs" + (f": {result.problem}" if result.problem else "")
    rows = f"{warehouse.rows:,}" if warehouse else "-"
    return f"{result.table:<12}{result.source.rows:>20,}{rows:>20}  {sums:<36}{verdict}"

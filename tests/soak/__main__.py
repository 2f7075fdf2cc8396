"""Runs a soak, or a part of one: a cluster under load and faults, with readers that go on all the time, and its result.

The folder has everything, so that the next call goes on where this one ended or was killed. Ctrl-C ends a part as its
time limit does: the load stops, source and targets are compared, and servers are shut down.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import fcntl
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg
import pymysql
from cdcworker.schemas.errors import CdcError
from confluent_kafka import KafkaException

from tests.tier import ROOT, commit

from . import report, sampling, state
from .bank import ACCOUNTS, BALANCE, TABLES, Client
from .checks import (
    Difference,
    Positions,
    SumReader,
    TopicReader,
    difference,
    ledger_difference,
    parquet_rows,
    postgres_rows,
)
from .faults import Faults, NobodyThereError
from .schedule import Fault, fault
from .stack import COPY_DB, SINKS, SOURCES, WAREHOUSE_DB, Stack
from .state import SoakError, State

CATCH_UP_S: Final = 300.0
"""How long targets may stay unequal to the source without a change."""
PLANTED_S: Final = 20.0
HELD_S: Final = 120.0
SAMPLE_S: Final = 20.0
SUMS_S: Final = 0.5


STUCK: Final = (
    *(AssertionError, CdcError, OSError, ValueError),
    *(psycopg.Error, pymysql.Error, KafkaException, httpx.HTTPError),
)
"""What is raised where a part does not answer or come back in time."""


class SoakFailedError(Exception):
    """Something is lost, doubled, or stuck. `kind` is that of a `Failure`."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Watch:
    """Clients, readers and samples of one part, and the comparison row by row."""

    def __init__(self, stack: Stack, seed: int, rest_s: float) -> None:
        self._stack = stack
        self._ending = threading.Event()
        folder, banks = stack.folder, stack.banks()
        self._banks = banks
        self.clients = {
            name: Client(f"{name}-0", banks[name], folder / "ledger" / f"{name}-0.jsonl", seed, rest_s)
            for name in SOURCES
        }
        self._positions_path = folder / "positions.json"
        self.positions = Positions.load(self._positions_path)
        self._topics = TopicReader(stack.kafka.bootstrap, stack.topics, self.positions, self._schema)
        sums = {f"{stack.schema(name)}.accounts": ACCOUNTS * BALANCE for name in SOURCES}
        self.sums = SumReader(lambda: stack.postgres.dsn(WAREHOUSE_DB), sums, SUMS_S)

    def start(self) -> None:
        for thread in (*self.clients.values(), self._topics):
            thread.start()

    def stop(self) -> None:
        self._ending.set()
        for client in self.clients.values():
            client.stop()
        self.sums.stop()
        self._topics.stop()
        self.positions.save(self._positions_path)

    def look(self) -> None:
        """SoakFailedError where a reader has seen something wrong, or somebody has ended."""
        for thread in (*self.clients.values(), self._topics):
            if thread.error is not None:
                raise SoakFailedError(
                    "stuck", f"{thread.name} has ended: {type(thread.error).__name__}: {thread.error}"
                )
        if ended := [one.id for one in self._stack.cluster.workers.values() if not one.process.alive()]:
            raise SoakFailedError("stuck", f"worker {', '.join(ended)} has ended by itself")
        if self.positions.wrong:
            kind = "doubled" if " twice" in self.positions.wrong[0] else "order"
            raise SoakFailedError(kind, f"{len(self.positions.wrong)} positions, first: {self.positions.wrong[0]}")
        if self.sums.wrong:
            raise SoakFailedError(
                "sum", f"{len(self.sums.wrong)} of {self.sums.reads} reads, first: {self.sums.wrong[0]}"
            )

    def compare(self, timeout_s: float = CATCH_UP_S, *, plant_loss: bool = False) -> None:
        """Holds the clients; then source and ledger, targets and source have to be equal, and the topics read to their ends.
        SoakFailedError where something is not so and has not changed for `timeout_s`, as it is with `plant_loss`."""
        with contextlib.ExitStack() as held:
            for client in self.clients.values():
                held.enter_context(client.held(HELD_S))
            for name, client in self.clients.items():
                if wrong := ledger_difference([client.file.ledger], self._banks[name].rows("accounts")):
                    raise SoakFailedError("ledger", f"{name}: {wrong}")
            self._await_equal(timeout_s)
            if plant_loss:
                self._plant_loss()
                self._await_equal(PLANTED_S)
            self._await_read(timeout_s)
        self.look()
        self.positions.save(self._positions_path)

    def _plant_loss(self) -> None:
        """Deletes a row of the warehouse behind the sink's back."""
        with psycopg.connect(self._stack.postgres.dsn(WAREHOUSE_DB)) as connection:
            connection.execute("delete from public.cards where id = (select min(id) from public.cards)")

    def _await_equal(self, timeout_s: float) -> None:
        before: dict[str, list[Difference]] | None = None
        deadline = time.monotonic() + timeout_s
        while found := self._differences():
            if found != before:
                before, deadline = found, time.monotonic() + timeout_s
            if time.monotonic() > deadline:
                raise SoakFailedError(self._kind_of(found), self._told(found))
            self.look()
            self._ending.wait(1.0)

    def _differences(self) -> dict[str, list[Difference]]:
        found: dict[str, list[Difference]] = {}
        for name, bank in self._banks.items():
            for table in TABLES:
                wanted, place = bank.rows(table), f"{self._stack.schema(name)}.{table}"
                for target in SINKS:
                    if one := difference(place, wanted, self._rows(target, self._stack.schema(name), table)):
                        found.setdefault(target, []).append(one)
        return found

    def _rows(self, target: str, schema: str, table: str) -> Any:
        if target == "lake":
            return parquet_rows(self._stack.lake / schema / table)
        dsn = self._stack.postgres.dsn(COPY_DB if target == "copy" else WAREHOUSE_DB)
        return postgres_rows(dsn, f"public.{schema}_{table}" if target == "copy" else f"{schema}.{table}")

    def _kind_of(self, found: dict[str, list[Difference]]) -> str:
        if any(state != "RUNNING" for state in self._states().values()):
            return "stuck"
        return "lost" if any(one.missing or one.other for each in found.values() for one in each) else "doubled"

    def _states(self) -> dict[str, str]:
        """The state of each connector's task."""
        tasks = {name: self._stack.cluster.status(name).get("tasks") or [{}] for name in (*SOURCES, *SINKS)}
        return {name: str(found[0].get("state")) for name, found in tasks.items()}

    def _told(self, found: dict[str, list[Difference]]) -> str:
        unequal = "; ".join(f"{target} has of {', '.join(map(str, each))}" for target, each in found.items())
        return f"{unequal}; tasks: {', '.join(f'{name} {one}' for name, one in self._states().items())}"

    def _await_read(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        ends = self._topics.ends()
        while behind := [topic for topic, end in ends.items() if self._topics.reached.get(topic, 0) < end]:
            self.look()
            if time.monotonic() > deadline:
                raise SoakFailedError("stuck", f"{', '.join(behind)} cannot be read to their ends by read_committed")
            self._ending.wait(0.2)

    def _schema(self, number: int) -> Any:
        """Asks the workers' registry until one answers."""
        import fastavro

        while not self._ending.is_set():
            with contextlib.suppress(AssertionError):
                answer = self._stack.cluster.rest("GET", f"/schemas/ids/{number}")
                if answer.status_code == 200:
                    return fastavro.parse_schema(json.loads(answer.json()["schema"]))
            self._ending.wait(0.5)
        raise InterruptedError("the part ends")


class Part:
    """One call of the program, on a stack that runs."""

    def __init__(self, stack: Stack, watch: Watch, known: State, ending: threading.Event) -> None:
        self.known = known
        self._stack, self._watch, self._ending = stack, watch, ending
        self._faults = Faults(stack)
        self._sampler = sampling.Sampler(stack, SAMPLE_S)
        self._began = time.monotonic()
        self._base = known

    def run(self, seconds: float, *, plant_loss: bool) -> None:
        """Makes faults until the part, or the whole, has had its time."""
        if not self.known.loaded:
            self._compare()
            self._note(replace(self.known, loaded=True))
        if plant_loss:
            self._watch.compare(plant_loss=True)
        self._watch.sums.start()
        while not self._ending.is_set() and self._passed() < seconds and not self.known.finished:
            self._hit(fault(self.known.seed, self.known.next_fault))
        self._compare()

    def note_end(self) -> None:
        self._note(self.known, ended=True)

    def _hit(self, one: Fault) -> None:
        deadline = time.monotonic() + one.wait_s
        while time.monotonic() < deadline and not self._ending.wait(0.2):
            self._watch.look()
            self._sampler.sample_if_due(self._base.seconds + self._passed())
        self._say(f"fault {one.number}: {one.kind}")
        try:
            self._faults.make(one)
        except NobodyThereError as exc:
            self._say(f"fault {one.number}: nobody is there ({exc})")
            self._note(self.known.hit(one.kind, skipped=True))
        else:
            self._note(self.known.hit(one.kind))
        self._watch.look()
        if one.ends_in_calm:
            self._compare()

    def _compare(self) -> None:
        began = time.monotonic()
        self._watch.compare()
        self._note(replace(self.known, calm=self.known.calm + 1))
        self._say(
            f"equal after {time.monotonic() - began:.0f} s: {self.known.transfers} transfers, "
            f"{self.known.records_read} records, {self.known.sums_read} sums"
        )

    def _note(self, changed: State, *, ended: bool = False) -> None:
        ledgers = [client.file.ledger for client in self._watch.clients.values()]
        self.known = replace(
            changed.passed(self._passed(), ended=ended),
            sums_read=self._base.sums_read + self._watch.sums.reads,
            records_read=self._base.records_read + self._watch.positions.records,
            transfers=sum(ledger.ok for ledger in ledgers),
            unknown=sum(ledger.unknown for ledger in ledgers),
        )
        state.save(self._stack.folder, self.known)

    def _passed(self) -> float:
        return time.monotonic() - self._began

    def _say(self, text: str) -> None:
        print(f"[{self._base.seconds + self._passed():6.0f} s] {text}", flush=True)


def options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--hours", type=_positive, default=10.0, help="of the whole soak")
    parser.add_argument("--minutes", type=_positive, help="of this part; the next call goes on")
    parser.add_argument("--seed", type=int, help="chooses the faults; a soak that has begun keeps its own")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "soak", help="where everything is kept")
    parser.add_argument("--rest-ms", type=_positive, default=50.0, help="pause of a client after each transaction")
    parser.add_argument("--no-page", action="store_true", help="write the result into the folder only")
    parser.add_argument(
        "--plant-loss", action="store_true", help="delete a row of a target first: the comparison has to see it"
    )
    return parser.parse_args(argv)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"has to be more than 0, not {text}")
    return value


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """SoakError while another process runs a part in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SoakError(f"a part runs already in {folder}") from None
        yield


def run(given: argparse.Namespace, ending: threading.Event) -> int:
    """Returns 0 where everything held, 1 where not."""
    folder = given.folder.resolve()
    known = state.load(folder, given.seed, given.hours)
    if known.finished:
        raise SoakError(
            f"the soak of seed {known.seed} has had its {known.hours:g} hours: ask for more, or remove {folder}"
        )
    known = known.begin(commit(), dt.datetime.now(dt.UTC).isoformat(timespec="seconds"))
    print(
        f"seed {known.seed}, fault {known.next_fault}, {known.seconds / 3600:.2f} of {known.hours:g} hours, {folder}",
        flush=True,
    )
    stack, failure = Stack(folder), None
    part = watch = None
    try:
        stack.start()
        watch = Watch(stack, known.seed, given.rest_ms / 1000)
        watch.start()
        part = Part(stack, watch, known, ending)
        part.run(given.minutes * 60 if given.minutes else float("inf"), plant_loss=given.plant_loss)
    except SoakFailedError as exc:
        failure = (exc.kind, str(exc))
    except STUCK as exc:
        failure = ("stuck", f"{type(exc).__name__}: {exc}")
    finally:
        if watch is not None:
            watch.stop()
        if part is not None:
            part.note_end()
            known = part.known
        stack.stop()
    if failure is not None:
        known = known.failed(*failure)
        print(
            f"FAILED ({failure[0]}): seed {known.seed}, fault {known.next_fault}: {failure[1]}\nkept: {folder}",
            flush=True,
        )
    state.save(folder, known)
    found = report.result(known, sampling.judged(sampling.read(folder)))
    report.write(folder, None if given.no_page or given.plant_loss else ROOT / "docs", found)
    print(json.dumps(found), flush=True)
    return 1 if failure else 0


def ended_by_signals() -> threading.Event:
    """An event that Ctrl-C and SIGTERM set."""
    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ending.set())
    return ending


def main(argv: list[str], ending: threading.Event) -> int:
    """Runs a part until `ending` is set. Returns the exit code: 1 when something did not hold, 2 when nothing could begin."""
    given = options(argv)
    try:
        with alone(given.folder.resolve()):
            return run(given, ending)
    except SoakError as exc:
        print(f"make soak: {exc}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], ended_by_signals()))

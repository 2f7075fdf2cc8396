"""Maintenance of a lake's tables under load with readers: `python -m tests.bench.lake_maintenance --kind iceberg --seconds 3600`.

One thread applies batches, maintenance runs beside them again and again, and readers scan the newest snapshot and older ones that are
kept. Each scan is compared with what was written. At the end the table is scanned beside one that was written afresh with the same
rows. The last line is one JSON object."""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from cdcworker.connectors.sink_engine.warehouse_kinds import kind_of
from cdcworker.connectors.spark.config import CONFIG_DEF
from cdcworker.connectors.spark.runtime.session import JavaRuntime, SparkEngine
from cdcworker.connectors.warehouses.kind import WriterTask
from cdcworker.connectors.warehouses.lake.maintenance.policy import MaintenancePolicy
from cdcworker.connectors.warehouses.lake.maintenance_run import LakeMaintenance
from cdcworker.connectors.warehouses.lake.tables import LakeName
from cdcworker.worker.task.sink_runner import find_machine

from tests import change_streams
from tests.contract.warehouses import TOPIC

from .measure import cpu_s, tree

PLACE = LakeName("public", "orders")
NAMES = ("id", "n", "a")
VERSIONS = 200
"""So many of the newest versions are known with their sums."""
SCANS = 3


class Rows:
    """The rows as they are, and changes of them."""

    def __init__(self, seed: int, keys: int) -> None:
        self.chance = random.Random(seed)
        self.keys = keys
        self.now: dict[int, int] = {}
        self.stream = change_streams.Stream(1)
        self.changes = 0

    def change(self, count: int) -> list[Any]:
        for _ in range(count):
            id = self.chance.randrange(self.keys)
            self.changes += 1
            if id not in self.now:
                self.stream.insert(change_streams.NARROW, (id, 1, f"a{id}", "b"))
                self.now[id] = 1
            elif self.chance.random() < 0.8:
                self.now[id] += 1
                self.stream.update(change_streams.NARROW, (id, self.now[id], f"a{id}", "b"))
            else:
                self.stream.delete(change_streams.NARROW, (id,))
                del self.now[id]
        taken = list(self.stream.records)
        self.stream.records.clear()
        return taken

    @property
    def sums(self) -> tuple[int, int]:
        return len(self.now), sum(self.now.values())


class Load:
    """The writer, its maintenance and its readers over one table."""

    def __init__(self, writer: Any, engine: SparkEngine, args: argparse.Namespace) -> None:
        self.writer = writer
        self.engine = engine
        self.args = args
        self.rows = Rows(args.seed, args.keys)
        self.ended = threading.Event()
        self.known: deque[tuple[float, Any, tuple[int, int]]] = deque(maxlen=VERSIONS)
        self.errors: list[str] = []
        self.runs: list[dict[str, Any]] = []
        self.reads = 0
        self.slowest_s = 0.0

    def write(self) -> None:
        until = time.monotonic() + self.args.seconds
        assembler, number = self.rows.stream.assembler(), 0
        while time.monotonic() < until or self.rows.changes < self.args.changes:
            records = self.rows.change(self.args.batch)
            batch = assembler.build(change_streams.arrow(records), self.writer.ledger(), number)
            began = time.monotonic()
            self.writer.apply(batch)
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self.known.append((time.monotonic(), self.writer._versions[TOPIC], self.rows.sums))
            number += 1

    def maintain(self) -> None:
        policy = MaintenancePolicy(
            age_s=self.args.age_s, removes_orphans=True, orphan_age_s=3600.0, file_bytes=self.args.file_bytes
        )
        maintenance = LakeMaintenance(self.writer, policy, "sink")
        while not self.ended.wait(self.args.every_s):
            done = maintenance.maintain(self.ended.is_set)
            if done is not None:
                self.runs.append(dict(done))
                self.errors += [f"maintenance: {code}" for code in done["errors"].values()]

    def read(self) -> None:
        chance = random.Random(self.args.seed + 1)
        session = self.engine.session().newSession()
        tables = self.writer._tables.another()
        tables.open(session)
        while not self.ended.is_set():
            # A query may take as long as is left until its snapshot is expired.
            least = time.monotonic() - self.args.age_s / 2
            young = [one for one in list(self.known) if one[0] > least]
            if not young:
                time.sleep(0.1)
                continue
            _, version, wanted = chance.choice(young)
            row = session.sql(f"SELECT count(*), sum(n) FROM {tables.name(PLACE)} VERSION AS OF {version}").first()
            found = (int(row[0]), int(row[1] or 0))
            self.reads += 1
            if found != wanted:
                self.errors.append(f"version {version}: {found} rows and sum, {wanted} were written")

    def guarded(self, work: Any) -> None:
        try:
            work()
        except Exception as exc:  # noqa: BLE001 - it is told at the end
            self.errors.append(f"{work.__name__}: {type(exc).__name__} {str(exc)[:300]}")

    def run(self) -> None:
        beside = [threading.Thread(target=self.guarded, args=[work]) for work in (self.maintain, self.read)]
        began = time.monotonic()
        for thread in beside:
            thread.start()
        self.guarded(self.write)
        self.seconds = time.monotonic() - began
        self.ended.set()
        for thread in beside:
            thread.join()


def scan_ratio(load: Load, kind: str) -> float:
    """CPU of a scan of the table divided by that of a table that was written afresh with its rows."""
    session, tables = load.writer._spark(), load.writer._tables
    fresh = tables.name(LakeName("public", "fresh"))
    session.sql(f"CREATE TABLE {fresh} USING {kind} AS SELECT * FROM {tables.name(PLACE)}")
    java = int(session._jvm.java.lang.ProcessHandle.current().pid())

    def scan(name: str) -> float:
        before = cpu_s(tree(java))
        session.sql(f"SELECT bit_xor(xxhash64({', '.join(NAMES)})), count(*) FROM {name}").collect()
        return cpu_s(tree(java)) - before

    least = {name: min(scan(name) for _ in range(SCANS)) for name in (tables.name(PLACE), fresh)}
    return least[tables.name(PLACE)] / max(0.001, least[fresh])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("iceberg", "delta"), default="iceberg")
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long batches come at least")
    parser.add_argument("--changes", type=int, default=1_000_000, help="how many changes at least")
    parser.add_argument("--batch", type=int, default=5000)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--every-s", type=float, default=10.0, help="between two runs of maintenance")
    parser.add_argument("--age-s", type=float, default=120.0, help="readers of younger snapshots find their files")
    parser.add_argument("--file-bytes", type=int, default=128 << 20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lake_maintenance") as root:
        print(json.dumps(measured(args, Path(root))))


def measured(args: argparse.Namespace, root: Path) -> dict[str, Any]:
    config = CONFIG_DEF.parse({"topics": TOPIC, "warehouse": args.kind, "warehouse.path": str(root / "lake")})
    (root / "lake").mkdir()
    (root / "state").mkdir()
    machine, kind = find_machine(f"spark+{kind_of(config).libraries}"), kind_of(config)
    settings = tuple(kind.spark_settings.items())
    runtime = JavaRuntime(f"{machine.java_home}/bin/java", machine.jars, settings=settings)
    engine = SparkEngine(runtime, root / "state", lambda: False)
    writer: Any = kind.open(config, WriterTask("sink", file_roots=("/",)))
    try:
        writer.attach(engine.session)
        writer.fence((1, 0))
        writer.claim([TOPIC])
        load = Load(writer, engine, args)
        load.run()
        size, rewritten = writer._tables.size(PLACE), sum(run["rewritten"]["bytes"] for run in load.runs)
        return {
            "kind": args.kind,
            "changes": load.rows.changes,
            "changes_per_s": round(load.rows.changes / load.seconds),
            "slowest_batch_s": round(load.slowest_s, 3),
            "reads": load.reads,
            "runs": len(load.runs),
            "run_s_max": round(max((run["took_s"] for run in load.runs), default=0.0), 3),
            "conflicts": sum(run["conflicts"] for run in load.runs),
            "rewritten_mb": round(rewritten / 1e6, 1),
            "expired": sum(run["expired_snapshots"] for run in load.runs),
            "removed": sum(run["removed_files"] for run in load.runs),
            "files": size.files,
            "deletes": size.deletes,
            "bytes_mb": round(size.bytes / 1e6, 1),
            "scan_ratio": round(scan_ratio(load, args.kind), 2),
            "errors": load.errors[:5],
        }
    finally:
        writer.close()
        engine.close()


if __name__ == "__main__":
    main()

"""A task's process whose source is scripted: transactions by number, the same on every replay."""

from __future__ import annotations

import logging
import os
import sys
import time

from cdcworker.connectors.registry import shipped
from cdcworker.connectors.registry.plugin import Plugin
from cdcworker.schemas.change import Change, Column, PollBatch, Position, Table
from cdcworker.worker.task import main as task_main

SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": "scripted",
    "fields": [
        {"name": "commit_lsn", "type": "long"},
        {"name": "tx_index", "type": "int"},
        {"name": "tx_sub", "type": "int"},
    ],
}
ID, NOTE, EXTRA = Column("id", "long", False, column_id=1), Column("note", "string"), Column("extra", "string")
KEYS = 7


def table(name: str, wide: bool) -> Table:
    return Table(("public", name), 1 + len(name), (ID, NOTE, EXTRA) if wide else (ID, NOTE), (0,), SOURCE)


SHAPES = {(name, wide): table(name, wide) for name in ("a", "bb") for wide in (False, True)}


def changes(lsn: int, wide_from: int) -> list[Change]:
    """Transaction `lsn`: up to five rows in two tables; from `wide_from` on the tables have a column more."""
    out = []
    for index in range(1 + lsn % 5):
        wide = lsn >= wide_from
        row = ((lsn + index) % KEYS, f"{lsn}.{index}") + (("x" * 50,) if wide else ())
        shape = SHAPES[("a", "bb")[(lsn + index) % 2], wide]
        source = {"commit_lsn": lsn, "tx_index": index, "tx_sub": 0}
        out.append(Change("u", shape, Position(lsn, index, 0), source, after=row))
    return out


class ScriptedTask:
    acked = 0

    def __init__(self, config, context) -> None:
        self._end = int(config["scripted.transactions"])
        self._wide_from = int(config.get("scripted.wide.from", "1000000000"))
        self._per_poll = int(config.get("scripted.per.poll", "1"))
        self._pause_s = int(config.get("scripted.pause.ms", "0")) / 1000
        self._lsn = 0
        self._queue: list[PollBatch] = []

    def open(self, position) -> None:
        self._lsn = position["lsn"] if position else 0
        if self._lsn < ScriptedTask.acked:
            raise RuntimeError("a source does not go back behind what was acknowledged")
        self._queue = []

    def poll(self) -> PollBatch:
        if self._queue:
            return self._queue.pop(0)
        if self._lsn >= self._end:
            time.sleep(0.02)
            return PollBatch(idle=True, watermark={"commit_lsn": self._lsn, "ts_ms": int(time.time() * 1000)})
        time.sleep(self._pause_s)
        upto = min(self._end, self._lsn + self._per_poll)
        rows = [change for lsn in range(self._lsn + 1, upto + 1) for change in changes(lsn, self._wide_from)]
        self._lsn = upto
        mark = {"commit_lsn": upto, "ts_ms": int(time.time() * 1000)}
        half = len(rows) // 2
        if upto % 3 == 0 and half:
            self._queue.append(PollBatch(rows[half:], {"lsn": upto}, mark))
            return PollBatch(rows[:half])
        return PollBatch(rows, {"lsn": upto}, mark, idle=upto % 2 == 0)

    def ack(self, position) -> None:
        ScriptedTask.acked = position["lsn"]

    def close(self) -> None:
        pass


class ScriptedSource:
    def __init__(self, config) -> None:
        self._config = config

    def task(self, share, context):
        return ScriptedTask(share, context)


if __name__ == "__main__":
    shipped.BY_NAME["scripted"] = Plugin("scripted", "source", "__main__:ScriptedSource")
    code = task_main.main()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)

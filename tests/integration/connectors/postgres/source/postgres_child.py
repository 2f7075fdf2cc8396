"""A process that runs a source task and appends what it commits to a file, one line per committed batch."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.postgres.source.connector import PostgresSource


def last_position(path: Path) -> dict | None:
    """The position of the last whole line: a line that a kill cut short never happened."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return json.loads(lines[-1])["position"] if lines else None


def main() -> None:
    path, config = Path(sys.argv[1]), json.loads(sys.argv[2])
    position = last_position(path)
    if path.exists():
        whole = path.read_bytes()
        path.write_bytes(whole[: whole.rfind(b"\n") + 1])
    source = PostgresSource(config)
    task = source.task(config, TaskContext(config["name"], 0, 1, "i", ""))
    task.open(position)
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    pending: list = []
    while True:
        batch = task.poll()
        pending += [(c.op, c.position, c.before, c.after, c.other_key) for c in batch.changes]
        if batch.position is not None:
            line = json.dumps({"changes": pending, "position": batch.position}).encode() + b"\n"
            # Two writes, so that a kill can fall between them.
            os.write(out, line[: len(line) // 2])
            os.write(out, line[len(line) // 2 :])
            pending = []
            task.ack(batch.position)


if __name__ == "__main__":
    main()

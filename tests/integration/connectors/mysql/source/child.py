"""A task in a process that can be killed: each line that it writes is what one transaction in Kafka would hold."""

from __future__ import annotations

import json
import sys

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.mysql.source.connector import MySqlSource
from cdcworker.schemas.change import Change


def main() -> None:
    config, position = json.loads(sys.stdin.readline())
    connector = MySqlSource(config)
    task = connector.task(connector.split(1)[0], TaskContext("c", 0, 1, "i", ""))
    task.open(position)
    items: list[object] = []
    while True:
        batch = task.poll()
        items += [
            [list(change.position), change.table.path[-1], change.op, change.after]
            for change in batch.changes
            if isinstance(change, Change)
        ]
        if batch.position is not None:
            sys.stdout.write(json.dumps([items, batch.position]) + "\n")
            sys.stdout.flush()
            items = []
            task.ack(batch.position)


if __name__ == "__main__":
    main()

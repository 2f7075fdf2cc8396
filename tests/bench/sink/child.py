"""One sink task in a process of its own: its spec on stdin, what it reports on stdout, ended by the end of stdin."""

from __future__ import annotations

import json
import logging
import sys
import threading
from typing import Any

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.sink import SinkSpec
from cdcworker.connectors.spark.connector import SparkSink
from cdcworker.schemas.errors import CdcError

_out = threading.Lock()


def say(what: Any) -> None:
    with _out:
        print(json.dumps(what), flush=True)


def main() -> None:
    logging.basicConfig(level="INFO")
    told = json.loads(sys.stdin.readline())
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    lists = {name: tuple(told[name]) for name in ("epoch", "topics", "jars")}
    roots = tuple(told.pop("file_roots"))
    spec = SinkSpec(**{**told, **lists})
    context = TaskContext(
        spec.connector,
        spec.task,
        spec.epoch[0],
        spec.incarnation,
        spec.state_dir,
        stopping=stop.is_set,
        report=say,
        file_roots=roots,
    )
    try:
        SparkSink(spec.config).run(spec, context)
    except CdcError as exc:
        say({"error": exc.to_dict()})
        sys.exit(1)


if __name__ == "__main__":
    main()

"""One task of a sink of records in a process of its own: `record_sink_child.py SPEC`. SIGTERM asks it to stop."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from typing import Any

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.sink import SinkSpec
from cdcworker.connectors.registry.names import lookup
from cdcworker.coordinator.kafka.clients import reader_config, settings, transactional_config
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.linux.process_group import die_with_parent


def main() -> int:
    die_with_parent(os.getppid())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    given = json.loads(sys.argv[1])
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    kafka = {"bootstrap.servers": given["bootstrap"]}
    id = f"{given['connector']}:{given['task']}:sink"
    producer = transactional_config(kafka, client_id="t-offsets", transactional_id=id)
    del producer["transactional.id"]
    spec = SinkSpec(
        connector=given["connector"],
        task=given["task"],
        incarnation="i",
        epoch=tuple(given["epoch"]),
        topics=tuple(given["topics"]),
        kafka=settings(kafka, "consumer"),
        schema_topic=given["schema_topic"],
        config=given["config"],
        state_dir=given["state_dir"],
        consumer=reader_config(kafka, client_id="t"),
        producer=producer,
        transactional_id=id,
    )
    context = TaskContext(
        given["connector"], given["task"], spec.epoch[0], "i", spec.state_dir, stopping.is_set,
        report=lambda numbers: tell({**numbers, "rss_mb": rss_mb(), "at": time.time()}), file_roots=(spec.state_dir,),
    )  # fmt: skip
    try:
        lookup(spec.config["connector.class"]).load()(spec.config).run(spec, context)
    except CdcError as error:
        tell({"error": error.to_dict()})
        return 3 if error.kind == "fenced" else 1
    return 0


def tell(message: Any) -> None:
    print(json.dumps(message), flush=True)


def rss_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)

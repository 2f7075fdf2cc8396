"""Runs one sink task: gives the connector what it needs of this machine and calls it until told to stop."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api import SinkConnector, SinkSpec, TaskContext
from cdcworker.connectors.config import parse_list
from cdcworker.connectors.registry import lookup
from cdcworker.coordinator.kafka_clients import reader_config, settings
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.control import Control, Reporter
from cdcworker.worker.files import file_roots
from cdcworker.worker.progress import OWN
from cdcworker.worker.source_kafka import client_id
from cdcworker.worker.taskspec import TaskSpec

log = logging.getLogger(__name__)

NO_TOPICS: Final = declare(
    "sink.no_topics",
    "config",
    "A sink task has no topics to read",
    "Name the topics in `topics`, or give `topics.regex` a pattern that existing topics match.",
)

ENDED: Final = declare(
    "sink.ended", "transient", "A sink's query ended although nobody stopped it", "It is started again by itself."
)

EXIT_STOPPED: Final = 0
RESUME_CHECK_S: Final = 1.0


class Machine(NamedTuple):
    """What a sink that runs in a JVM needs of the machine."""

    java_home: str = ""
    jars: tuple[str, ...] = ()
    cache_dir: str = ""


def find_machine(jars: str) -> Machine:
    """The Java runtime and the locked jars of these sets, joined by a plus; fetched when they are missing."""
    from cdcworker.worker.devstack.jars import cache_dir, ensure
    from cdcworker.worker.devstack.java import find_java

    java = find_java()
    files = tuple(str(path) for name in jars.split("+") for path in ensure(name))
    return Machine(str(java.home), files, str(cache_dir()))


def finder(sink: object) -> Callable[[], tuple[str, tuple[str, ...]]]:
    """Finds, when it is asked, what a sink needs that is reached by a JVM alone."""

    def find() -> tuple[str, tuple[str, ...]]:
        found = find_machine(getattr(sink, "jars", ""))
        return found.java_home, found.jars

    return find


def run_sink(
    spec: TaskSpec,
    config: Mapping[str, str],
    control: Control,
    reporter: Reporter,
    machine: Callable[[str], Machine] = find_machine,
) -> int:
    """Runs until told to stop; returns the exit code. A fence in the target stops it, not the lease: the ledger's epoch
    is compared in every batch, and a query that is stopped for a short silence takes long to come back.
    """
    connector: SinkConnector = lookup(config.get("connector.class", "")).load()(config)
    topics: list[str] = []
    context = _context(spec, control, reporter, topics)
    jars = getattr(connector, "jars", "")
    runs = 0
    while not control.stopping:
        if control.paused:
            reporter.status("PAUSED")
            while control.paused and not control.stopping:
                control.wait(RESUME_CHECK_S, lambda: not control.paused)
            continue
        sink_spec = spec_of(spec, config, machine(jars) if jars else Machine())
        if sink_spec.java_home:
            os.environ["JAVA_HOME"] = sink_spec.java_home
        topics[:] = sink_spec.topics
        reporter.topics(topics)
        reporter.status("RUNNING")
        runs += 1
        log.info("sink task runs topics=%d epoch=%s run=%d", len(sink_spec.topics), sink_spec.epoch, runs)
        connector.run(sink_spec, context)
        if not control.interrupted():
            raise CdcError(ENDED, "the sink ended by itself")
    reporter.status("STOPPED")
    return EXIT_STOPPED


def spec_of(spec: TaskSpec, config: Mapping[str, str], machine: Machine) -> SinkSpec:
    topics = tuple(parse_list(config.get("topics", "")))
    if not topics:
        raise CdcError(NO_TOPICS, "the task's share of the topics is empty", where={"connector": spec.connector})
    return SinkSpec(
        connector=spec.connector,
        task=spec.task,
        incarnation=spec.incarnation,
        epoch=(spec.task_epoch, spec.attempt),
        topics=topics,
        kafka=settings(spec.kafka, "consumer"),
        schema_topic=spec.topics.schemas,
        config=config,
        state_dir=spec.state_dir,
        java_home=machine.java_home,
        jars=machine.jars,
        cache_dir=machine.cache_dir,
        consumer=reader_config(spec.kafka, client_id=client_id(spec, "sink")),
    )


def _context(spec: TaskSpec, control: Control, reporter: Reporter, topics: Sequence[str]) -> TaskContext:
    def report(numbers: dict[str, Any]) -> None:
        reporter.metrics(numbers)
        reporter.topics(topics)

    return TaskContext(
        connector=spec.connector,
        task=spec.task,
        task_epoch=spec.task_epoch,
        incarnation=spec.incarnation,
        state_dir=spec.state_dir,
        stopping=control.interrupted,
        file_roots=file_roots(spec.providers),
        report=report,
        beat=OWN.beat,
    )

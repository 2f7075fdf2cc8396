"""Runs one sink task: finds Java and the jars on this machine, and runs the connector until the task is stopped."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.sink import NeedsJvm, SinkConnector, SinkSpec, WritesTopics
from cdcworker.connectors.config.definition import parse_list
from cdcworker.connectors.registry.names import lookup
from cdcworker.coordinator.kafka.clients import reader_config, settings, transactional_config
from cdcworker.coordinator.kafka.existing_topics import existing
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.config.file_roots import file_roots
from cdcworker.worker.protocol.control import TaskControl, TaskReporter
from cdcworker.worker.protocol.heartbeat import HEARTBEAT
from cdcworker.worker.protocol.task_spec import TaskSpec, sink_transactional_id
from cdcworker.worker.security.topic_rules import access_of
from cdcworker.worker.source.task_identity import client_id

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
TRANSACTION_MS: Final = 30_000
DEAD_LETTER_BYTES_MAX: Final = 64 * 1024 * 1024


class SinkMachine(NamedTuple):
    """The Java runtime, the jars and the cache folder of this machine, for sinks that run in a JVM."""

    java_home: str = ""
    jars: tuple[str, ...] = ()
    cache_dir: str = ""


def find_machine(jars: str) -> SinkMachine:
    """Finds the Java runtime and the locked jars of these sets, joined by `+`; jars that are missing are fetched."""
    from cdcworker.worker.java.jars import cache_dir, ensure
    from cdcworker.worker.java.runtime import find_java

    java = find_java()
    files = tuple(str(path) for name in jars.split("+") for path in ensure(name))
    return SinkMachine(str(java.home), files, str(cache_dir()))


def finder(sink: object) -> Callable[[], tuple[str, tuple[str, ...]]]:
    """Returns a function that finds the Java runtime and the jars of a sink when it is called."""

    def find() -> tuple[str, tuple[str, ...]]:
        machine = find_machine(sink.jars if isinstance(sink, NeedsJvm) else "")
        return machine.java_home, machine.jars

    return find


def run_sink(
    spec: TaskSpec,
    config: Mapping[str, str],
    control: TaskControl,
    reporter: TaskReporter,
    machine: Callable[[str], SinkMachine] = find_machine,
) -> int:
    """Runs the sink until the task is stopped; returns the exit code.

    A fence in the target stops a sink that has lost its task, not the lease: every batch compares the epoch in the
    ledger, and a query that stops for a short loss of contact takes long to start again.
    """
    connector: SinkConnector = lookup(config.get("connector.class", "")).load()(config)
    topics: list[str] = []
    context = _context(spec, control, reporter, topics)
    jars = connector.jars if isinstance(connector, NeedsJvm) else ""
    runs = 0
    while not control.stopping:
        if control.paused:
            reporter.status("PAUSED")
            while control.paused and not control.stopping:
                control.wait(RESUME_CHECK_S, lambda: not control.paused)
            continue
        sink_spec = spec_of(spec, config, machine(jars) if jars else SinkMachine())
        access = access_of(spec.providers, spec.topic_prefixes)
        access.check_read(sink_spec.topics, partial(existing, spec.kafka))
        if isinstance(connector, WritesTopics):
            access.check_write(connector.written_topics(), partial(existing, spec.kafka))
        if sink_spec.java_home:
            os.environ["JAVA_HOME"] = sink_spec.java_home
        topics[:] = sink_spec.topics
        reporter.topics(topics)
        reporter.status("RUNNING")
        runs += 1
        log.info("sink task running topics=%d epoch=%s run=%d", len(sink_spec.topics), sink_spec.epoch, runs)
        connector.run(sink_spec, context)
        if not control.interrupted():
            raise CdcError(ENDED, "the sink ended by itself")
    reporter.status("STOPPED")
    return EXIT_STOPPED


def spec_of(spec: TaskSpec, config: Mapping[str, str], machine: SinkMachine) -> SinkSpec:
    """Returns the sink's spec. CdcError `sink.no_topics` when the task has no topics."""
    topics = tuple(parse_list(config.get("topics", "")))
    if not topics:
        raise CdcError(NO_TOPICS, "the task's share of the topics is empty", where={"connector": spec.connector})
    id = sink_transactional_id(spec.group_id, spec.connector, spec.task)
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
        producer=_producer(spec, id),
        transactional_id=id,
    )


def _producer(spec: TaskSpec, id: str) -> dict[str, Any]:
    """Returns the properties of a transactional producer without its id."""
    config = transactional_config(
        spec.kafka,
        client_id=client_id(spec, "sink-offsets"),
        transactional_id=id,
        transaction_timeout_ms=TRANSACTION_MS,
    )
    del config["transactional.id"]
    # What a topic holds fits into the topic of dead letters, if that one's limit is as large.
    config.setdefault("message.max.bytes", DEAD_LETTER_BYTES_MAX)
    return config


def _context(spec: TaskSpec, control: TaskControl, reporter: TaskReporter, topics: Sequence[str]) -> TaskContext:
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
        beat=HEARTBEAT.beat,
        jobs=partial(getattr, control, "jobs"),
    )

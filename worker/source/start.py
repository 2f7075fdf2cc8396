"""Puts a source task together and runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.source import SourceTask
from cdcworker.connectors.registry.names import lookup
from cdcworker.worker.protocol.control import TaskControl, TaskReporter
from cdcworker.worker.protocol.task_spec import TaskSpec
from cdcworker.worker.source.kafka_ports import SourcePorts, context_of
from cdcworker.worker.source.runner import SourceRunner


def run_source(spec: TaskSpec, config: Mapping[str, str], control: TaskControl, reporter: TaskReporter) -> int:
    """Runs until told to stop; returns the exit code."""
    connector: Any = lookup(config.get("connector.class", "")).load()(config)

    def make_task(share: Mapping[str, str], context: TaskContext) -> SourceTask:
        task: SourceTask = connector.task(share, context)
        return task

    return run_with(spec, config, control, reporter, make_task)


def run_with(
    spec: TaskSpec, config: Mapping[str, str], control: TaskControl, reporter: TaskReporter, make_task: Any
) -> int:
    """Does what `run_source` does, with a task that `make_task` makes."""
    extra: list[SourceRunner] = []

    def report(numbers: dict[str, Any]) -> None:
        for runner in extra:
            runner.extra_metrics(numbers)

    context = context_of(spec, control, report, control.interrupted)
    ports = SourcePorts(spec, config, make_task, reporter, context, control)
    runner = SourceRunner(ports, control, reporter)
    extra.append(runner)
    return runner.run()

"""Tests a distribution's plugins: finds them and their harnesses, runs the checks in this process, then on a Kafka of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final, NamedTuple

from cdcworker.connectors.config.installed_plugins import TRANSFORMS, VARIABLE, InstalledPlugin, plugins_of
from cdcworker.connectors.registry.installed import connectors_of
from cdcworker.connectors.registry.plugin import Plugin
from cdcworker.schemas.errors import CdcError, declare
from cdcworker.worker.config.file_roots import FILE_ROOTS
from cdcworker.worker.conformance.findings import Finding, findings
from cdcworker.worker.conformance.harness import GROUP, TransformHarness
from cdcworker.worker.conformance.kafka_checks import Place, SinkOnKafka, SourceOnKafka
from cdcworker.worker.conformance.sink_checks import SinkChecks
from cdcworker.worker.conformance.source_checks import SourceChecks
from cdcworker.worker.conformance.transform_checks import TransformChecks
from cdcworker.worker.devstack.kafka import QUICK_COMPILER_ONLY, EmbeddedKafka

NOT_TESTABLE: Final = declare(
    "plugin.not_testable",
    "config",
    "A distribution has nothing that can be tested",
    "Install it in this environment (pip install -e .), with an entry point in cdcworker.connectors or cdcworker.connectors.transforms"
    " and one of the same name in cdcworker.conformance; `cdcworker plugin new` writes both.",
)


class PluginUnderTest(NamedTuple):
    """One plugin of a distribution. `connector` is None for a transform."""

    name: str
    kind: str
    connector: Plugin | None
    transform: InstalledPlugin | None


def plugins_under_test(distribution: str) -> Sequence[PluginUnderTest]:
    """Returns the plugins of a distribution. CdcError for one that is not there, has none, or has one that is refused."""
    found = plugins_of([distribution])
    connectors = connectors_of(found)
    for refused in connectors.refused:
        raise CdcError(NOT_TESTABLE, f"{refused.name or distribution}: {refused.error.message}")
    out = [PluginUnderTest(plugin.name, plugin.kind, plugin, None) for plugin in connectors.found]
    return [*out, *(PluginUnderTest(each.name, "transform", None, each) for each in found.of(TRANSFORMS))]


def checked_plugin(plugin: PluginUnderTest, distribution: str, folder: Path, bootstrap: str = "") -> Iterator[Finding]:
    """Yields what the checks find; without a broker only those of this process run."""
    harness = _harness(plugin.name, folder)
    try:
        if plugin.transform is not None:
            yield from findings(TransformChecks(plugin.transform.load(), _of_transform(harness)).all())
            return
        assert plugin.connector is not None
        config = {"name": "kit", "connector.class": plugin.name, **harness.config}
        made = plugin.connector.load()
        if plugin.kind == "source":
            whole = {"topic.prefix": "kit", "poll.interval.ms": "20", **config}
            yield from findings(SourceChecks(made, harness, whole, file_roots=(str(folder),)).all())
        else:
            yield from findings(SinkChecks(made, harness, {"topics": "kit.rows", **config}, (str(folder),)).all())
        if bootstrap:
            place = Place(bootstrap, plugin.name, harness.config, _variables(distribution), {FILE_ROOTS: str(folder)})
            on_kafka: Any = SourceOnKafka if plugin.kind == "source" else SinkOnKafka
            yield from findings(on_kafka(place, harness).all())
    finally:
        harness.close()


def checked_distribution(distribution: str, folder: Path, *, with_kafka: bool = True) -> Iterator[tuple[str, Finding]]:
    """Yields the results of all plugins of a distribution, by the plugin's name. CdcError."""
    plugins = plugins_under_test(distribution)
    if with_kafka and any(plugin.connector is not None for plugin in plugins):
        with EmbeddedKafka(folder / "kafka", jvm_options=QUICK_COMPILER_ONLY) as kafka:
            yield from _tested(plugins, distribution, folder, kafka.bootstrap)
    else:
        yield from _tested(plugins, distribution, folder, "")


def _tested(
    plugins: Sequence[PluginUnderTest], distribution: str, folder: Path, bootstrap: str
) -> Iterator[tuple[str, Finding]]:
    for plugin in plugins:
        own = folder / plugin.name
        own.mkdir()
        for found in checked_plugin(plugin, distribution, own, bootstrap):
            yield plugin.name, found


def _harness(name: str, folder: Path) -> Any:
    found = next((entry for entry in entry_points(group=GROUP) if entry.name == name), None)
    if found is None:
        raise CdcError(NOT_TESTABLE, f"there is no entry point {name} in the group {GROUP}")
    try:
        return found.load()(folder)
    except Exception as error:
        raise CdcError(NOT_TESTABLE, f"the harness of {name} fails with {type(error).__name__}: {error}") from error


def _of_transform(harness: Any) -> TransformHarness:
    if not isinstance(harness, TransformHarness):
        raise CdcError(NOT_TESTABLE, f"the harness is {type(harness).__name__}; expects a TransformHarness")
    return harness


def _variables(distribution: str) -> Mapping[str, str]:
    """Returns what a task's process finds the plugin by."""
    return {VARIABLE: distribution, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

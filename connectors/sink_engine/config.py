"""The config keys that every sink into a warehouse has, whatever reads its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors.api.sink import VERIFY_INTERVAL_MS_MIN
from cdcworker.connectors.config.converters import SIDES
from cdcworker.connectors.config.definition import ConfigKey, between, is_regex, one_of
from cdcworker.connectors.config.refusals import Refusal
from cdcworker.connectors.formats import registry_keys as registry
from cdcworker.connectors.sink_engine import warehouse_kinds
from cdcworker.connectors.warehouses import schema_policy
from cdcworker.connectors.warehouses.output_config import keeps_versions, output_keys, output_problems

TRIGGER_MS: Final = 250
"""A row waits half of it on average. Without changes there are no batches; with some all the time each batch costs."""
RECORDS_MAX: Final = 100_000
"""About 32 MB of ordinary rows, which go through the task's process at once."""
BATCHES: Final = "Batches"

ACCEPTED: Final = {
    "name": "",
    "connector.class": "",
    "tasks.max": "",
    "key.converter": "Records are read by the schema ids they carry.",
    "key.converter.": "Records are read by the schema ids they carry.",
    "value.converter": "Records are read by the schema ids they carry.",
    "value.converter.": "Records are read by the schema ids they carry.",
    "header.converter": "Headers are read as they are.",
    "errors.log.enable": "Errors are always logged.",
    "errors.log.include.messages": "Values are never logged.",
    "auto.create": "Tables are always created.",
    "auto.evolve": "Set by schema.change.policy.",
    "insert.mode": "Always upsert by key; append without one.",
    "pk.mode": "The record's key is the key.",
    "delete.enabled": "Set by delete.mode.",
}
"""Keys of Kafka Connect and of its JDBC sink that change nothing here, each with the reason that users read."""


def target_keys() -> Iterable[ConfigKey]:
    """Returns the keys that say which topics are read and where the target is."""
    key = ConfigKey
    names = tuple(kind.name for kind in warehouse_kinds.KINDS)
    yield key(
        "topics",
        "LIST",
        (),
        importance="HIGH",
        group="Topics",
        topics="names",
        doc="Topics to read; one that does not exist yet is waited for.",
    )
    yield key(
        "topics.regex",
        validator=is_regex,
        importance="HIGH",
        group="Topics",
        topics="pattern",
        doc="A regular expression; every topic whose whole name it matches is read.",
    )
    yield key(
        "warehouse",
        default=warehouse_kinds.DEFAULT,
        validator=one_of(*names),
        recommended=names,
        importance="HIGH",
        group="Warehouse",
        doc="Kind of the target.",
        connects=True,
    )
    yield from warehouse_kinds.location_keys()


def registry_keys() -> Iterable[ConfigKey]:
    """Yields the keys of an existing schema registry, whose ids may be in the records."""
    for side in SIDES:
        yield from registry.registry_keys(side)


def registry_problems(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yields what is wrong with them: the ids of keys and values are looked for in one registry."""
    yield from registry.registry_checks(config)
    urls = [config.get(f"{side}.converter.{registry.URL}") for side in SIDES]
    if urls[0] and urls[0] != urls[1]:
        yield (
            f"key.converter.{registry.URL}",
            f"has to be that of value.converter.{registry.URL}: one registry is asked",
        )


def batch_keys() -> Iterable[ConfigKey]:
    """Returns the keys that say how rows come out, how large batches are and what stops a table or the task."""
    key = ConfigKey
    yield from output_keys(BATCHES)
    yield from warehouse_kinds.batch_keys()
    yield key(
        "trigger.interval.ms",
        "INT",
        TRIGGER_MS,
        validator=between(0, 3_600_000),
        group=BATCHES,
        doc="How often a batch begins.",
    )
    others = ", ".join(f"{kind.records_max} for {kind.title}" for kind in warehouse_kinds.KINDS if kind.records_max)
    yield key(
        "max.batch.records",
        "INT",
        RECORDS_MAX,
        validator=between(100, 5_000_000),
        group=BATCHES,
        doc=f"Most records of a batch; unless it is given, {others}.",
    )
    yield key(
        "consistency",
        default="eventual",
        validator=one_of("eventual", "source"),
        recommended=("eventual", "source"),
        group=BATCHES,
        doc="eventual: each batch is shown as it is read. source: only whole transactions of the source are shown, all tables"
        " at one position (_cdcworker.watermark, in a lake set_<sink>, of files sets/<sink>); one task reads all.",
    )
    yield from schema_policy.keys(BATCHES)
    yield key(
        "errors.tolerance",
        default="none",
        validator=one_of("none", "all"),
        group=BATCHES,
        doc="An undecodable record halts the task (none), or is set aside in the warehouse with its place and cause (all).",
    )


def _interval_problem(value: int) -> str | None:
    if 0 < value < VERIFY_INTERVAL_MS_MIN:
        return Refusal(f"Value must be 0 or at least {VERIFY_INTERVAL_MS_MIN}")
    return between(0, 31 * 86_400_000)(value)


def verify_keys() -> Iterable[ConfigKey]:
    """Returns the keys of comparisons with the source."""
    key = ConfigKey
    verify = "Verify"
    yield key(
        "verify.interval.ms",
        "LONG",
        0,
        validator=_interval_problem,
        group=verify,
        of_task=False,
        doc="Compare with the source so long after the last comparison: 60,000 or more; 0: only when asked.",
    )
    yield key(
        "verify.range.rows",
        "INT",
        50_000,
        validator=between(100, 10_000_000),
        importance="LOW",
        group=verify,
        doc="Rows that one statement of a comparison reads, for keys whose order needs no collation.",
    )
    yield key(
        "verify.rows.per.s",
        "INT",
        100_000,
        validator=between(0, 100_000_000),
        importance="LOW",
        group=verify,
        doc="How fast a comparison reads at most; 0: as fast as it can.",
    )
    yield key(
        "verify.statement.timeout.ms",
        "INT",
        60_000,
        validator=between(100, 86_400_000),
        importance="LOW",
        group=verify,
        doc="A table with a slower statement is reported as not compared.",
    )
    yield key(
        "verify.timeout.ms",
        "LONG",
        3_600_000,
        validator=between(1_000, 31 * 86_400_000),
        importance="LOW",
        group=verify,
        doc="Limit of a whole comparison.",
    )


def problems(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Returns keys of a parsed config that are missing or contradict each other, each with what is wrong."""
    yield from warehouse_kinds.kind_of(config).problems(config)
    yield from registry_problems(config)
    yield from output_problems(config)
    if keeps_versions(config) and not warehouse_kinds.kind_of(config).keeps_versions:
        kinds = ", ".join(kind.name for kind in warehouse_kinds.KINDS if kind.keeps_versions)
        yield "output.mode", f"scd2 is offered by warehouse={kinds} only; log keeps every change of a row elsewhere"
    yield from schema_policy.check(config)


def records_max(given: Mapping[str, str], config: Mapping[str, Any]) -> int:
    """Returns the bound of a batch: what `given`, the config as submitted, says, or else the default of the warehouse's kind."""
    of_kind = warehouse_kinds.kind_of(config).records_max
    return int(config["max.batch.records"]) if of_kind is None or "max.batch.records" in given else of_kind

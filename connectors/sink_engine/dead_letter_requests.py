"""Requests about a sink's dead letters: a list of them, and to have them applied again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdcworker.connectors.api.sink import DeadLetterFilter, LedgerAccess
from cdcworker.connectors.arrow.envelope_schemas import EnvelopeSchemas
from cdcworker.connectors.external_registry.schemas import FindsById
from cdcworker.connectors.sink_engine.warehouse_kinds import kind_of
from cdcworker.connectors.warehouses.kind import SparkHost
from cdcworker.schemas.errors import CdcError, declare

NOT_OFFERED: Final = declare(
    "spark.letters_elsewhere",
    "environment",
    "A warehouse whose readers take consistent sets cannot have dead letters sent again one by one",
    "To have the records read again, stop the sink and set its offset back to the first of them: rows that are as new or"
    " newer stay.",
)
CAUSES_MAX: Final = 20


def listed(
    config: Mapping[str, Any], access: LedgerAccess, wanted: DeadLetterFilter, spark: SparkHost
) -> dict[str, Any]:
    """Returns how many dead letters there are, and those that are wanted, without what is in them."""
    with kind_of(config).dead_letters(config, access, spark) as letters:
        total, rows = letters.listed(wanted.topic, wanted.after, wanted.limit)
    names = ("topic", "partition", "offset", "code", "cause", "at_ms", "key_bytes", "value_bytes")
    return {"total": total, "letters": [dict(zip(names, row, strict=True)) for row in rows]}


def redriven(
    config: Mapping[str, Any],
    access: LedgerAccess,
    wanted: DeadLetterFilter,
    spark: SparkHost,
    registry: FindsById | None = None,
) -> dict[str, Any]:
    """Applies dead letters again, with the schemas of an existing registry too where the config names one. Returns how many were
    applied, how many failed and why, and where the time was over."""
    from cdcworker.connectors.sink_engine.kafka.brokers import SchemaLogReader

    kind = kind_of(config)
    if config["consistency"] == "source" and not kind.redrives_consistent_sets:
        raise CdcError(NOT_OFFERED, "a row that is sent again would be in no consistent set")
    schemas = SchemaLogReader(wanted.kafka, wanted.schema_topic, registry)
    try:
        schemas.refresh()
        shapes = EnvelopeSchemas(schemas, wait_s_max=0)
        log = config["output.mode"] == "log"
        with kind.dead_letters(config, access, spark) as letters:
            done = letters.redrive(shapes, wanted.topic, wanted.after, wanted.seconds, log=log, dry_run=wanted.dry_run)
    finally:
        schemas.close()
    causes = [{"code": code, "cause": cause, "letters": count} for (code, cause), count in done.causes.most_common()]
    numbers = {"redriven": done.letters, "rows": done.rows, "failed": done.failed, "left": done.left}
    return {**numbers, "causes": causes[:CAUSES_MAX], "next": done.next}

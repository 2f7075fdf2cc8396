"""What a person asks of a sink's dead letters: what there is, and to have them applied again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from cdcworker.connectors.api import LettersAsked, SinkPlace
from cdcworker.connectors.spark import warehouses
from cdcworker.connectors.spark.config import conninfo
from cdcworker.connectors.spark.letters import Place, Redriven
from cdcworker.connectors.spark.schemas import Shapes
from cdcworker.schemas.errors import CdcError, declare

if TYPE_CHECKING:
    from collections.abc import Sequence

NOT_OFFERED: Final = declare(
    "spark.letters_elsewhere",
    "environment",
    "A warehouse whose readers take consistent sets cannot have dead letters sent again one by one",
    "To have the records read again, stop the sink and set its offset back to the first of them: rows that are as new or"
    " newer stay.",
)
CAUSES_MAX: Final = 20


class _Letters(Protocol):
    def listed(self, topic: str, after: Place, limit: int) -> tuple[int, Sequence[Sequence[Any]]]: ...

    def redrive(
        self, shapes: Shapes, topic: str, after: Place, seconds: float, *, log: bool = False, dry_run: bool = False
    ) -> Redriven: ...


def listed(config: Mapping[str, Any], place: SinkPlace, asked: LettersAsked) -> dict[str, Any]:
    with _open(config, place) as letters:
        total, found = letters.listed(asked.topic, asked.after, asked.limit)
    names = ("topic", "partition", "offset", "code", "cause", "at_ms", "key_bytes", "value_bytes")
    return {"total": total, "letters": [dict(zip(names, row, strict=True)) for row in found]}


def redriven(config: Mapping[str, Any], place: SinkPlace, asked: LettersAsked) -> dict[str, Any]:
    from cdcworker.connectors.spark.kafka import SchemaLogReader

    if config["consistency"] == "source" and config["warehouse"] != "postgres":
        raise CdcError(NOT_OFFERED, "a row that is sent again would be in no consistent set")
    schemas = SchemaLogReader(asked.kafka, asked.schema_topic)
    try:
        schemas.refresh()
        shapes = Shapes(schemas, wait_s_max=0)
        log = config["output.mode"] == "log"
        with _open(config, place) as letters:
            done = letters.redrive(shapes, asked.topic, asked.after, asked.seconds, log=log, dry_run=asked.dry_run)
    finally:
        schemas.close()
    causes = [{"code": code, "cause": cause, "letters": count} for (code, cause), count in done.causes.most_common()]
    numbers = {"redriven": done.letters, "rows": done.rows, "failed": done.failed, "left": done.left}
    return {**numbers, "causes": causes[:CAUSES_MAX], "next": done.next}


@contextlib.contextmanager
def _open(config: Mapping[str, Any], place: SinkPlace) -> Iterator[_Letters]:
    schema, output, kind = config["warehouse.schema"], warehouses.output_of(config), config["warehouse"]
    with contextlib.ExitStack() as stack:
        if kind == "postgres":
            from cdcworker.connectors.spark.redrive import PostgresLetters

            found = PostgresLetters(conninfo(config), place.connector, schema=schema, output=output)
            stack.callback(found.close)
            yield cast("_Letters", found)
        elif kind == "parquet":
            from cdcworker.connectors.spark.parquetletters import letters_of

            buckets = config["warehouse.buckets"]
            yield letters_of(warehouses.folder(config, place.file_roots), place.connector, output, buckets)
        else:
            from cdcworker.connectors.spark.lakeletters import LakeBeside

            tables = warehouses.tables_of(config, place.file_roots)
            lake = LakeBeside(tables, place.connector, schema=schema, output=output)
            lake.attach(stack.enter_context(warehouses.own_session(config, place.machine())))
            stack.callback(lake.close)
            yield lake.letters

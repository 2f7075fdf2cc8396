"""What transforms cost: in a source on the native path, and each one on a record's way through Python.

A RegexRouter alone leaves a source on the native path: a real worker drains the same WAL with it and without any transform, in
turn, and each round checks every row. The router gives topics the names that they had. Beside it stands a projection (ReplaceField of
the envelope), which takes each record through Python. The ratios are of the CPU seconds of the worker's whole process tree.

The other transforms are measured in this process: what each adds to a chain whose only transform is never applied, in CPU time
per record, the least of all rounds. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cdcworker.connectors.postgres.decode.native_path import native
from cdcworker.connectors.postgres.source_block import SOURCE_SCHEMA
from cdcworker.connectors.transform_chain.config import chain_of, format_of
from cdcworker.connectors.transform_chain.encoder import encoder_of
from cdcworker.schemas.change import Change, Column, Position, Table
from cdcworker.schemas.log import SchemaLog, register_in_memory

from .measure import finish
from .source.__main__ import fill
from .source.stage import Stage, drained, inserted, running

PACKAGE: Final = "org.apache.kafka.connect.transforms."
UNWRAP: Final = {"type": "io.debezium.transforms.ExtractNewRecordState"}
WAYS: Final[Mapping[str, Mapping[str, str]]] = {
    "none": {},
    "native_regex_router": {"type": "RegexRouter", "regex": r"(.*)\.public\.(.*)", "replacement": "$1.public.$2"},
    "projection": {"type": "ReplaceField$Value", "exclude": "transaction"},
}
"""The ways of a source, by what they are called in the figures."""
PYTHON: Final[Mapping[str, Mapping[str, str]]] = {
    "cast": {"type": "Cast$Value", "spec": "n:int64,price:string"},
    "drop_headers": {"type": "DropHeaders", "headers": "other"},
    "extract_field": {"type": "ExtractField$Key", "field": "id"},
    "filter": {"type": "Filter"},
    "flatten": {"type": "Flatten$Value"},
    "header_from": {"type": "HeaderFrom$Value", "fields": "name", "headers": "name", "operation": "move"},
    "hoist_field": {"type": "HoistField$Value", "field": "row"},
    "insert_field": {"type": "InsertField$Value", "static.field": "origin", "static.value": "shop", "timestamp.field": "at"},
    "insert_header": {"type": "InsertHeader", "header": "origin", "value.literal": "shop"},
    "mask_field": {"type": "MaskField$Value", "fields": "name", "replacement": "***"},
    "regex_router": {"type": "RegexRouter", "regex": r"(.*)\.public\.(.*)", "replacement": "$1-$2"},
    "replace_field": {"type": "ReplaceField$Value", "exclude": "price", "renames": "n:number"},
    "set_schema_metadata": {"type": "SetSchemaMetadata$Value", "schema.name": "shop.Order", "schema.version": "2"},
    "timestamp_converter": {
        "type": "TimestampConverter$Value", "field": "made", "target.type": "string",
        "format": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "unix.precision": "microseconds",
    },
    "timestamp_router": {"type": "TimestampRouter"},
    "value_to_key": {"type": "ValueToKey", "fields": "id,name"},
}  # fmt: skip
"""One transform of each class with usual keys, over flat rows."""
DEBEZIUM: Final[Mapping[str, Mapping[str, str]]] = {
    "filter_cel": {
        "type": "io.debezium.transforms.Filter", "language": "cel", "condition": "value.op == 'c' && value.after.id >= 0",
    },
    "event_router": {
        "type": "io.debezium.transforms.outbox.EventRouter", "table.field.event.key": "n",
        "table.field.event.payload": "name", "route.by.field": "name", "route.topic.regex": "(row).*",
        "route.topic.replacement": "outbox.$1",
    },
    "logical_topic_router": {
        "type": "io.debezium.transforms.ByLogicalTableRouter", "topic.regex": r"(.*)\.narrow", "topic.replacement": "$1.all",
    },
    "changed_record_state": {"type": "io.debezium.transforms.ExtractChangedRecordState", "header.changed.name": "Changed"},
    "partition_routing": {
        "type": "io.debezium.transforms.partitions.PartitionRouting", "partition.payload.fields": "after.name",
        "partition.topic.num": "12",
    },
}  # fmt: skip
"""Transforms of envelopes, over the same rows in their envelopes."""
NEVER: Final = {"type": "Filter", "predicate": "never"}
PREDICATES: Final = {"predicates": "never", "predicates.never.type": f"{PACKAGE}predicates.RecordIsTombstone"}


def chain(**transforms: Mapping[str, str]) -> dict[str, str]:
    """Returns the keys of a chain; a class without a package is Kafka Connect's."""
    config = {"transforms": ",".join(transforms)} if transforms else {}
    for name, keys in transforms.items():
        config |= {f"transforms.{name}.{key}": value for key, value in keys.items()}
        if "." not in keys["type"]:
            config[f"transforms.{name}.type"] = PACKAGE + keys["type"]
    return config


# A source with a chain and one without


def one_round(stage: Stage, number: int) -> dict[str, float]:
    figures = {}
    # Whoever comes first meets other pages in memory: each second round goes the other way round.
    for way, keys in list(WAYS.items())[:: -1 if number % 2 else 1]:
        config = chain(one=keys) if keys else {}
        found = drained(stage, inserted("narrow", stage.rows["narrow"]), f"{way}_{number}", config)
        figures[f"cpu_us_per_event_{way}"] = found["cpu_us_per_event"]
    for way in WAYS:
        if way != "none":
            figures[f"{way}_overhead_ratio"] = figures[f"cpu_us_per_event_{way}"] / figures["cpu_us_per_event_none"]
    print(f"{number}: " + " ".join(f"{name}={value:,.2f}" for name, value in figures.items()), flush=True)
    return figures


def in_a_source(rows: int, rounds: int) -> dict[str, float]:
    if native() is None:
        sys.exit("the native core was not built")
    settings = {"max_wal_size": "8GB", "wal_sender_timeout": "0"}
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder, running(Path(folder), settings) as stage:
        fill(stage, "narrow", rows)
        figures = [one_round(stage, number) for number in range(rounds)]
    return {name: statistics.median(figure[name] for figure in figures) for name in figures[0]}


# Each transform in this process


def changes(rows: int) -> list[Change]:
    columns = (
        Column("id", "long", optional=False, column_id=1, source_type="bigint"),
        Column("n", "int", optional=False, column_id=2, source_type="integer"),
        Column("name", "string", column_id=3, source_type="text"),
        Column("price", "double", column_id=4, source_type="double precision"),
        Column("made", "long", column_id=5, source_type="timestamp without time zone"),
    )
    table = Table(("public", "narrow"), 1, columns, (0,), SOURCE_SCHEMA)
    source = {field["name"]: "x" if field["type"] == "string" else 1 for field in SOURCE_SCHEMA["fields"]}
    source |= {"snapshot": "false", "sequence": "x", "origin": None}
    return [
        Change(
            "c", table, Position(1, number, 0), source, after=(number, 3, f"row {number}", 1.5, 1_790_000_000_000_000)
        )
        for number in range(rows)
    ]


def encoding_us(config: Mapping[str, str], rows: Sequence[Change], batch: int = 1_000) -> float:
    """CPU microseconds per change of an encoder that knows the table already."""
    encoder = encoder_of(chain_of(config), format_of(config), "shop", register_in_memory(SchemaLog()))
    encoder.encode(rows[:batch])
    began = time.process_time()
    for at in range(0, len(rows), batch):
        encoder.encode(rows[at : at + batch])
    return (time.process_time() - began) / len(rows) * 1e6


def in_python(rows: int, rounds: int) -> dict[str, float]:
    work = changes(rows)
    ways = {"flat": chain(unwrap=UNWRAP), "chain": {**PREDICATES, **chain(unwrap=UNWRAP, never=NEVER)}}
    ways["envelopes"] = {**PREDICATES, **chain(never=NEVER)}
    ways |= {name: {**PREDICATES, **chain(unwrap=UNWRAP, never=NEVER, one=keys)} for name, keys in PYTHON.items()}
    ways |= {name: {**PREDICATES, **chain(never=NEVER, one=keys)} for name, keys in DEBEZIUM.items()}
    least = dict.fromkeys(ways, float("inf"))
    for number in range(rounds):
        for name, config in list(ways.items())[:: -1 if number % 2 else 1]:
            least[name] = min(least[name], encoding_us(config, work))
    figures = {f"us_per_record_{name}": least[name] - least["chain"] for name in PYTHON}
    figures |= {f"us_per_record_{name}": least[name] - least["envelopes"] for name in DEBEZIUM}
    for name, value in figures.items():
        print(f"{name} {value:.2f}")
    return {
        "encode_us_per_record_flat": least["flat"],
        "encode_us_per_record_chain": least["chain"],
        **figures,
        "us_per_record_max": max(figures.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000, help="of the source")
    parser.add_argument("--rounds", type=int, default=5, help="of the source; 0: none")
    parser.add_argument("--python-rows", type=int, default=20_000)
    parser.add_argument("--python-rounds", type=int, default=5)
    options = parser.parse_args()
    found = in_python(options.python_rows, options.python_rounds)
    if options.rounds:
        found |= in_a_source(options.rows, options.rounds)
    finish({"rows": options.rows, "rounds": options.rounds, **{name: round(value, 3) for name, value in found.items()}})


if __name__ == "__main__":
    main()

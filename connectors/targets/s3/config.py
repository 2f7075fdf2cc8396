"""The keys of the sink into files: those of the stores, where a file lies, when one ends, and what is in it. Names of Confluent's S3 sink
are understood."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cdcworker.connectors.config.definition import ConfigDef, ConfigKey, between, matches, one_of
from cdcworker.connectors.record_sink.config import config_def
from cdcworker.connectors.targets.s3 import confluent
from cdcworker.connectors.targets.s3.layout import template_problem
from cdcworker.connectors.warehouses.shared_keys import folder
from cdcworker.connectors.warehouses.storage.files import Storage
from cdcworker.connectors.warehouses.storage.local_disk import LocalDisk
from cdcworker.connectors.warehouses.stores import object_stores

PATH: Final = "warehouse.path"
FORMATS: Final = ("json", "csv", "avro", "parquet")
_FORMER: Final = {
    "warehouse.s3.endpoint": "store.url",
    "warehouse.s3.region": "s3.region",
    "warehouse.s3.path.style.access": "s3.path.style.access.enabled",
    "warehouse.s3.access.key": "aws.access.key.id",
    "warehouse.s3.secret.key": "aws.secret.access.key",
}
"""What Confluent's sink calls the keys of a bucket."""


def place_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the config with the place that `s3.bucket.name` and `topics.dir` name, where they do."""
    if config[PATH] or not config["s3.bucket.name"]:
        return config
    return {**config, PATH: f"s3://{config['s3.bucket.name']}/{config['topics.dir'].strip('/')}"}


def store_of(config: Mapping[str, Any], roots: Sequence[str]) -> Storage:
    """Returns the files below the place that a parsed config names. CdcError where the worker does not open it to connectors."""
    placed = place_of(config)
    kind = object_stores.kind_of(placed[PATH])
    return kind.open(placed, roots) if kind is not None else LocalDisk(folder(placed, roots))


def template_of(config: Mapping[str, Any]) -> str:
    """Returns the template of the folders of files."""
    return str(config["file.folder.template"] or confluent.folder_template(config) or "${topic}/partition=${partition}")


def format_of(config: Mapping[str, Any]) -> str:
    return str(config["file.format"] or confluent.format_of(config["format.class"]) or "json")


def _template(value: str) -> str | None:
    return template_problem(value) if value else None


def _place_keys() -> Iterable[ConfigKey]:
    yield ConfigKey(
        PATH, default="", importance="HIGH", group="Store", connects=True,
        doc="Where the files lie: s3://bucket/prefix, gs://bucket/prefix, abfss://container@account.dfs.core.windows.net/prefix, or a"
        " folder in one of the worker's file roots.",
    )  # fmt: skip
    yield ConfigKey(
        "s3.bucket.name", default="", group="Store", validator=matches(r"([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])?", "a bucket"),
        connects=True, doc="The bucket where warehouse.path is not set, as Confluent's sink names it.",
    )  # fmt: skip
    yield ConfigKey(
        "topics.dir", default="topics", connects=False, group="Store", validator=matches(r"[A-Za-z0-9._/=-]{0,200}", "a folder"),
        doc="The folder in the bucket that s3.bucket.name names.",
    )  # fmt: skip
    for key in object_stores.KEYS:
        yield replace(key, group="Store", former=_FORMER.get(key.name, key.former))


def _layout_keys() -> Iterable[ConfigKey]:
    group = "Files"
    yield ConfigKey(
        "file.folder.template", default="", connects=False, importance="HIGH", group=group, validator=_template,
        doc="The folder of a record's file, with places such as ${topic}, ${partition} and ${value.after.tenant}, and %Y, %m, %d and %H of the"
        " record's time in UTC. Default: ${topic}/partition=${partition}.",
    )  # fmt: skip
    yield ConfigKey(
        "file.max.records", "INT", 10_000, connects=False, importance="HIGH", group=group, validator=between(1, 100_000), former="flush.size",
        doc="A file ends with so many records. Records of all partitions of one writer count together.",
    )  # fmt: skip
    yield ConfigKey(
        "file.max.bytes", "INT", 8_388_608, connects=False, group=group, validator=between(1_024, 67_108_864),
        doc="A file ends with the record that reaches so many bytes of keys and values in Kafka. So much is in memory, some three times.",
    )  # fmt: skip
    yield ConfigKey(
        "file.max.age.ms", "INT", 60_000, connects=False, group=group, validator=between(0, 86_400_000), former="rotate.schedule.interval.ms",
        doc="A file ends so long after its first record was read.",
    )  # fmt: skip
    yield ConfigKey(
        "file.idle.ms", "INT", 0, connects=False, group=group, validator=between(0, 86_400_000),
        doc="A file ends when no record has come for so long; 0: idle time ends none.",
    )  # fmt: skip
    yield ConfigKey(
        "file.writers", "INT", 1, connects=False, group=group, validator=between(1, 32),
        doc="How many writers a task has; each has a share of the partitions, and files of its own in memory.",
    )  # fmt: skip


def _content_keys() -> Iterable[ConfigKey]:
    group = "Content"
    yield ConfigKey(
        "file.format", default="", connects=False, group=group, validator=one_of("", *FORMATS), recommended=FORMATS,
        doc="json: a line of JSON for each record; csv: with a line of names; avro: a container file; parquet. Default: json.",
    )  # fmt: skip
    yield ConfigKey(
        "file.content", default="value", connects=False, group=group, validator=one_of("value", "event"), recommended=("value", "event"),
        doc="value: the record's value, and nothing for a tombstone. event, with json: an object with id, topic, partition, offset, timestamp,"
        " key and value.",
    )  # fmt: skip
    yield ConfigKey(
        "file.compression", default="none", connects=False, group=group, validator=one_of("none", "gzip"), recommended=("none", "gzip"),
        former="s3.compression.type", doc="Of files of json and csv. Avro's are compressed with deflate, Parquet's with zstd.",
    )  # fmt: skip
    yield from confluent.keys()


def _checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    placed = place_of(config)
    path = placed[PATH]
    kind = object_stores.kind_of(path)
    if not path:
        yield PATH, "is needed, or s3.bucket.name"
    elif kind is not None:
        yield from kind.problems(placed)
    elif not re.fullmatch(r"/[^\0]+", path):
        yield (
            PATH,
            "expects s3://bucket/prefix, gs://bucket/prefix, abfss://container@account/prefix or an absolute path",
        )
    if config["file.content"] == "event" and format_of(config) != "json":
        yield "file.content", "is event only with file.format=json"
    yield from confluent.problems(config)


CONFIG_DEF: Final[ConfigDef] = config_def(
    [*_place_keys(), *_layout_keys(), *_content_keys()], confluent.ACCEPTED, _checks
)

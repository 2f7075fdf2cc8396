"""What configs of Confluent's S3 sink say in words of their own: its partitioners and its formats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors.config.definition import ConfigKey

_PACKAGE: Final = "io.confluent.connect.storage.partitioner."
_PARTITIONERS: Final = (
    "DefaultPartitioner",
    "FieldPartitioner",
    "TimeBasedPartitioner",
    "HourlyPartitioner",
    "DailyPartitioner",
)
_FORMATS: Final = {"JsonFormat": "json", "AvroFormat": "avro", "ParquetFormat": "parquet"}
_HOURLY: Final = "year=%Y/month=%m/day=%d/hour=%H"
_TOKENS: Final = {"YYYY": "%Y", "yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H"}
_PATH: Final = re.compile(r"'([^'%$]*)'|(YYYY|yyyy|MM|dd|HH)|([-_=/.])")
ACCEPTED: Final[Mapping[str, str]] = {
    "storage.class": "The store follows from warehouse.path.",
    "schema.compatibility": "Records of different schemas are in different files.",
    "schema.generator.class": "",
    "behavior.on.null.values": "Tombstones are left out, with file.content=event written.",
    "partition.duration.ms": "The folder's template says how long a folder is.",
    "locale": "",
    "timezone": "Folders are of UTC.",
    "timestamp.extractor": "Folders are of the record's time, which is the same when it is written again.",
    "rotate.interval.ms": "file.max.age.ms says when a file ends.",
    "directory.delim": "",
    "file.delim": "",
    "filename.offset.zero.pad.width": "",
    "s3.ssea.name": "The bucket's own encryption counts.",
    "s3.part.size": "A file is put in one request; file.max.bytes bounds it.",
    "s3.part.retries": "Requests are repeated until the store answers.",
    "s3.retry.backoff.ms": "Requests are repeated until the store answers.",
}


def keys() -> Iterable[ConfigKey]:
    group = "Confluent's names"
    yield ConfigKey(
        "format.class", "CLASS", "", connects=False, importance="LOW", group=group, validator=_format_problem,
        doc="Confluent's name of a format, where file.format is not set.",
    )  # fmt: skip
    yield ConfigKey(
        "partitioner.class", "CLASS", "", connects=False, importance="LOW", group=group, validator=_partitioner_problem,
        doc="Confluent's name of a layout, where file.folder.template is not set.",
    )  # fmt: skip
    yield ConfigKey(
        "partition.field.name", "LIST", [], connects=False, importance="LOW", group=group, doc="Fields of the value, for its FieldPartitioner.",
    )  # fmt: skip
    yield ConfigKey(
        "path.format", default="", connects=False, importance="LOW", group=group, validator=_path_problem,
        doc="Folders of time, for its TimeBasedPartitioner, such as 'year'=YYYY/'month'=MM/'day'=dd.",
    )  # fmt: skip


def format_of(name: str) -> str:
    """Returns the format that a class stands for; empty: none."""
    return _FORMATS.get(name.rpartition(".")[2], "")


def folder_template(config: Mapping[str, Any]) -> str:
    """Returns the template that a partitioner stands for; empty: none is named."""
    kind = config["partitioner.class"].rpartition(".")[2]
    if kind == "FieldPartitioner":
        return "/".join(["${topic}", *(f"{name}=${{value.{name}}}" for name in config["partition.field.name"])])
    if kind == "DailyPartitioner":
        return "${topic}/" + _HOURLY.rpartition("/")[0]
    if kind == "HourlyPartitioner":
        return "${topic}/" + _HOURLY
    return f"${{topic}}/{times_of(config['path.format'])}" if kind == "TimeBasedPartitioner" else ""


def times_of(path: str) -> str:
    """Returns folders of time, such as year=%Y, for what Confluent's sink spells as Joda's library does."""
    return _PATH.sub(lambda found: found[1] if found[1] is not None else _TOKENS.get(found[0], found[0]), path)


def problems(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    kind = config["partitioner.class"].rpartition(".")[2]
    if kind == "FieldPartitioner" and not config["partition.field.name"]:
        yield "partition.field.name", "is needed with the FieldPartitioner"
    if kind == "TimeBasedPartitioner" and not config["path.format"]:
        yield "path.format", "is needed with the TimeBasedPartitioner"


def _format_problem(value: str) -> str | None:
    known = not value or format_of(value)
    return None if known else f"expects one of {', '.join(_FORMATS)}, or file.format"


def _partitioner_problem(value: str) -> str | None:
    known = not value or value.removeprefix(_PACKAGE) in _PARTITIONERS
    return None if known else f"expects one of {', '.join(_PARTITIONERS)}, or file.folder.template"


def _path_problem(value: str) -> str | None:
    return (
        None if not _PATH.sub("", value) else "expects texts in quotes, YYYY, MM, dd, HH and what stands between them"
    )

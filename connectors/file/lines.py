"""What the file source and the file sink share: which paths they may touch, and how a line is a record's value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cdcworker.connectors.config.definition import ConfigKey, Validator, matches, one_of
from cdcworker.schemas.errors import CdcError, declare

NO_ACCESS: Final = declare(
    "file.no_access",
    "environment",
    "The file cannot be read or written",
    "Check that the file is a regular file and that the worker's user has the right; then restart the task.",
)
WRITE_FAILED: Final = declare(
    "file.write_failed",
    "transient",
    "Writing to the file failed",
    "Check the free space and the state of the file system; the task tries again by itself.",
)
UNREADABLE_LINE: Final = declare(
    "file.unreadable_line",
    "data",
    "A line or a record's value cannot be converted",
    "Choose the value.converter that fits, or correct the line at the offset that is named.",
)

STRING: Final = "org.apache.kafka.connect.storage.StringConverter"
BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
JSON: Final = "org.apache.kafka.connect.json.JsonConverter"
AVRO: Final = "io.confluent.connect.avro.AvroConverter"
_STRING_SCHEMA: Final = {"type": "string", "optional": False}


_OURS: Final = re.compile(r"\..*\.(?:ledger-\d+-\d+\.json(?:\.part)?|new-\d+-\d+)", re.DOTALL)
"""Names of what a sink keeps beside its file."""


def _absolute(value: str) -> str | None:
    if not value.startswith("/") or "\0" in value:
        return "expects an absolute path"
    return "is the name of a sink's ledger" if _OURS.fullmatch(value.rpartition("/")[2]) else None


def file_key(doc: str) -> ConfigKey:
    return ConfigKey(
        "file", required=True, importance="HIGH", group="File", validator=_absolute, doc=doc, connects=True
    )


def converter_keys(*converters: str) -> tuple[ConfigKey, ...]:
    return (
        ConfigKey(
            "value.converter", "CLASS", STRING, group="Values", validator=one_of(*converters), recommended=converters,
            doc="What a record's value is: the text of the line, or the line as JSON, with or without a schema.",
        ),
        ConfigKey(
            "value.converter.schemas.enable", "BOOLEAN", True, group="Values",
            doc="Of the JsonConverter: the value is an object with schema and payload.",
        ),
    )  # fmt: skip


TOPIC_NAME: Final[Validator] = matches(r"[A-Za-z0-9._\-]{1,249}", "letters, digits, dot, hyphen and underscore")


def no_access(exc: OSError, path: Path) -> CdcError:
    return CdcError(NO_ACCESS, exc.strerror or type(exc).__name__, where={"key": "file", "file": str(path)})


# --- lines and values ------------------------------------------------------------------------------------------------


def line_encoder(converter: str, *, schemas: bool) -> Callable[[bytes], bytes]:
    """Returns the function from a line without its end to a record's value. It raises ValueError for a line that is not
    UTF-8."""
    if converter != JSON:
        return lambda line: line

    def encode(line: bytes) -> bytes:
        text = line.decode()
        value = {"schema": _STRING_SCHEMA, "payload": text} if schemas else text
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    return encode


def line_decoder(converter: str, *, schemas: bool) -> Callable[[bytes], bytes]:
    """Returns the function from a record's value to a line. It raises ValueError for what is not JSON, or has no
    payload."""
    if converter != JSON:
        return lambda value: value

    def decode(value: bytes) -> bytes:
        found = json.loads(value)
        if schemas:
            if not isinstance(found, dict) or "payload" not in found:
                raise ValueError("no payload")
            found = found["payload"]
        return found.encode() if isinstance(found, str) else plain_json(found)

    return decode


def plain_json(value: Any) -> bytes:
    """One line of JSON; bytes as text of one character each."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=lambda b: b.decode("latin-1")).encode()

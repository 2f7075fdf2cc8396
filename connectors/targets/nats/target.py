"""Publishes batches of records to a stream of JetStream, each with the id by which the server takes it once."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from typing import Final, Literal
from urllib.parse import quote

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.api.record_target import RecordBatch, TargetPlace, TargetRecord
from cdcworker.connectors.record_sink.errors import RECORD_REFUSED, TARGET_REFUSES
from cdcworker.connectors.record_sink.json_values import JsonValues, encoded
from cdcworker.connectors.targets.events import event_text
from cdcworker.connectors.targets.nats.acknowledgements import Message
from cdcworker.connectors.targets.nats.client import PLACE_KEY, NatsClient
from cdcworker.connectors.targets.templates import TextTemplate
from cdcworker.connectors.transforms.avro_form import JSON_WRITTEN, avro_of
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.connectors.transforms.data import ConnectSchema
from cdcworker.schemas.errors import CdcError

log = logging.getLogger(__name__)

_SUBJECT: Final = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(?:\.[^\s.*>\x00-\x1f\x7f]+)*")
_SPECIAL: Final = re.compile(r"[%.*>\s\x00-\x1f\x7f]")
HEADER_BYTES: Final = 400
"""So much a message takes besides its body and its subject."""
SCHEMAS_MAX: Final = 1_024


class SubjectTemplate(TextTemplate):
    """Fills a template with values, each of which is one token; the dots of a topic stay."""

    def fill(self, record: TargetRecord) -> str:
        subject = super().fill(record)
        if not _SUBJECT.fullmatch(subject):
            raise CdcError(RECORD_REFUSED, "the record makes no subject")
        return subject

    def _at(self, record: TargetRecord, place: str) -> str:
        return record.topic if place == "topic" else super()._at(record, place)


class NatsTarget:
    """A stream. It has taken a batch once each message is acknowledged; one that comes again is taken for the same."""

    def __init__(self, place: TargetPlace) -> None:
        config = place.config
        self._config = config
        self._client = NatsClient(config, place.state_dir)
        self._values = JsonValues(numeric=True)
        self._subject = SubjectTemplate(config["nats.subject.template"], token, "_")
        self._is_event = config["nats.format"] == "event"
        self._bucket = config["nats.schemas.bucket"]
        self._known: BoundedCache[int, tuple[ConnectSchema, str]] = BoundedCache(SCHEMAS_MAX)
        self._unwritten: dict[str, bytes] = {}
        self._is_looked_at = False

    def write(self, batch: RecordBatch) -> None:
        # All of them are made before one is sent: a record that cannot be is no reason to send the others twice.
        messages = [self._message(record) for record in batch.records]
        if not self._is_looked_at:
            for finding in self._findings(create=True):
                log.warning("%s", finding.message)
            self._is_looked_at = True
        self._judge(messages)
        if self._unwritten:
            self._client.put(self._bucket, self._unwritten)
            self._unwritten = {}
        if refused := self._client.publish(messages):
            raise refused[0]

    def cancel(self) -> None:
        self._client.cancel()

    def close(self) -> None:
        self._client.close()

    def check(self) -> Sequence[CheckFinding]:
        """Logs in and looks at the stream; makes nothing."""
        try:
            return self._findings(create=False)
        except CdcError as error:
            is_made = self._config["nats.stream.create"] and error.where.get("key") == "nats.stream"
            if is_made:
                return []
            severity: Literal["warning", "error"] = "warning" if error.kind == "transient" else "error"
            return [CheckFinding(PLACE_KEY, severity, error.code, error.message, error.hint)]
        finally:
            self._client.close()

    def _findings(self, *, create: bool) -> list[CheckFinding]:
        wanted_s = self._config["nats.stream.duplicate.window.ms"] / 1000
        found_s = self._client.stream(create=create).duplicate_window or 0.0
        if found_s >= wanted_s:
            return []
        text = (
            f"the stream remembers ids for {found_s:g} s: records that come again later, as after a longer outage of the task, are there twice"
        )  # fmt: skip
        return [CheckFinding("nats.stream.duplicate.window.ms", "warning", TARGET_REFUSES, text)]

    # Messages

    def _message(self, record: TargetRecord) -> Message:
        if self._is_event:
            text = event_text(self._values, record)
        else:
            text = self._values.text(record.value_schema, record.value)
        headers = {"Nats-Msg-Id": record.id}
        if self._bucket:
            for kind, schema in (("key", record.key_schema), ("value", record.value_schema)):
                if schema is not None:
                    headers[f"cdc-{kind}-schema"] = self._schema(f"{token(record.topic)}/{kind}", schema)
        return Message(self._subject.fill(record), encoded(text), headers)

    def _judge(self, messages: Sequence[Message]) -> None:
        most = self._client.max_body_bytes
        for message in messages:
            if most and len(message.body) + len(message.subject) + HEADER_BYTES > most:
                raise CdcError(RECORD_REFUSED, f"the message is larger than the {most} bytes that the server takes")

    def _schema(self, folder: str, schema: ConnectSchema) -> str:
        """Returns the key of a schema in the bucket, where it is written before the message."""
        known = self._known.get(id(schema))
        if known is None:
            text = json.dumps(avro_of(schema, JSON_WRITTEN), sort_keys=True).encode()
            key = f"{quote(folder, safe='/').replace('%', '=')}/{hashlib.sha256(text).hexdigest()[:32]}"
            known = self._known[id(schema)] = schema, key
            self._unwritten[key] = text
        return known[1]


def token(value: str) -> str:
    """Returns a value as one token of a subject."""
    if not value:
        raise CdcError(RECORD_REFUSED, "an empty value is no part of a subject")
    return _SPECIAL.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), value)

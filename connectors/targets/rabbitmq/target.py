"""Publishes batches of records to RabbitMQ, each with an id by which a consumer takes it once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.api.record_target import RecordBatch, TargetPlace
from cdcworker.connectors.record_sink.errors import TARGET_REFUSES
from cdcworker.connectors.targets.rabbitmq.addresses import PLACE_KEY
from cdcworker.connectors.targets.rabbitmq.client import IGNORED, RabbitClient
from cdcworker.connectors.targets.rabbitmq.messages import MessageForm
from cdcworker.connectors.targets.rabbitmq.topology import CREATE
from cdcworker.schemas.errors import CdcError


class RabbitTarget:
    """An exchange. It has taken a batch once each message is confirmed. A batch that comes again, whole or in pieces, is published but
    for what was confirmed before."""

    def __init__(self, place: TargetPlace) -> None:
        self._config = place.config
        self._client = RabbitClient(place.config, place.state_dir, f"cdcworker {place.connector}".strip())
        self._form = MessageForm(place.config, place.connector_class)
        self._last: set[str] = set()
        """Ids of the records of the last batch, which may come again."""
        self._taken: set[str] = set()
        """Those of them that the server has."""

    def write(self, batch: RecordBatch) -> None:
        ids = {record.id for record in batch.records}
        if not ids <= self._last:
            self._last, self._taken = ids, self._taken & ids
        # All of them are made before one is sent: a record that cannot be is no reason to send the others twice.
        messages = [self._form.message(record) for record in batch.records if record.id not in self._taken]
        if messages:
            self._client.publish(messages, self._taken)

    def cancel(self) -> None:
        self._client.cancel()

    def close(self) -> None:
        self._client.close()

    def check(self) -> Sequence[CheckFinding]:
        """Logs in and looks at the exchange and the queues; makes nothing."""
        findings: list[CheckFinding] = []
        if self._config["rabbitmq.unroutable"] == IGNORED:
            text = "messages that no queue takes are lost"
            findings.append(CheckFinding("rabbitmq.unroutable", "warning", TARGET_REFUSES, text))
        try:
            self._client.check()
        except CdcError as error:
            is_made = self._config["rabbitmq.declare"] == CREATE and error.where.get("key") == "rabbitmq.exchange"
            if not is_made:
                severity: Literal["warning", "error"] = "warning" if error.kind == "transient" else "error"
                key = str(error.where.get("key", PLACE_KEY))
                findings.append(CheckFinding(key, severity, error.code, error.message, error.hint))
        finally:
            self._client.close()
        return findings

"""The sink into another Kafka, with two real clusters: copies are there once, whatever dies."""

from __future__ import annotations

import pytest

from tests.contract import record_targets
from tests.contract.record_targets import *  # noqa: F403 - the suite of all targets of records
from tests.integration.connectors.targets.kafka_mirror import MirrorReader
from tests.record_sinks import Topics

pytestmark = pytest.mark.kafka


@pytest.fixture
def receiver(target, monkeypatch):
    made = MirrorReader(target)

    def topics(kafka, *given, **more):
        return made.of(Topics(kafka, *given, **more)).topics

    # The suite makes its topics itself; the reader has to know which.
    monkeypatch.setattr(record_targets, "Topics", topics)
    yield made
    made.close()

"""What the tests of targets share."""

from __future__ import annotations

from pathlib import Path

import pytest
from cdcworker.worker.devstack.kafka import EmbeddedKafka

from tests.conftest import QUICK_COMPILER_ONLY, serving


@pytest.fixture(scope="session")
def target(devstack_dir: Path):
    """A second broker, a cluster of its own. Leave it running."""
    with serving(EmbeddedKafka(devstack_dir / "target", heap="256m", jvm_options=QUICK_COMPILER_ONLY)) as broker:
        yield broker

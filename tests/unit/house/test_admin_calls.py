"""Calls of Kafka's admin client that may end the whole process."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ABORTING = re.compile(
    r"\.(describe_consumer_groups|delete_consumer_groups|list_consumer_group_offsets|alter_consumer_group_offsets"
    r"|delete_consumer_group_offsets)\("
)


def test_no_call_goes_to_a_groups_coordinator() -> None:
    """librdkafka (issue 4605) aborts the process when the broker goes away during one of these: no exception, no
    chance to clean up. With a broker that is killed and started again it takes less than a minute."""
    folders = ("schemas", "coordinator", "connectors", "worker", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert [str(path.relative_to(ROOT)) for path in files if ABORTING.search(path.read_text(encoding="utf-8"))] == []

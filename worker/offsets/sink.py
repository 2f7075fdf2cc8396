"""Ledgers of sinks, which lie in their targets: read and altered by the connector, in a child with a time limit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cdcworker.coordinator.model import Connector, JsonObject
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.untrusted.json_text import JsonRefused, parse_message
from cdcworker.worker.children.call import call_child
from cdcworker.worker.http.errors import NOT_OFFERED
from cdcworker.worker.offsets.model import (
    BAD_POSITION,
    INTERRUPTED,
    REFUSED,
    UNFINISHED,
    UNKNOWN_PARTITION,
    ConnectorOffset,
)
from cdcworker.worker.security.topic_rules import access_of

TOPIC: Final = "kafka_topic"
PARTITION: Final = "kafka_partition"
OFFSET: Final = "kafka_offset"
TIMEOUT_S: Final = 60.0
"""The ledger of a lake is read by Spark, which has to start."""
COMMAND: Final = (sys.executable, "-m", "cdcworker.worker.offsets.child")

Ask = Callable[[JsonObject], JsonObject]
Partitions = Callable[[], Mapping[str, int]]
"""How many partitions each topic has."""
Ends = Callable[[str, Sequence[int]], Mapping[int, int]]
"""The offset that the next record of each of a topic's partitions will have."""


class SinkOffsetsClient:
    """Has a child process read and alter the ledger of a sink, and checks changes against the topics before."""

    def __init__(
        self,
        providers: Mapping[str, str],
        partitions: Partitions,
        ends: Ends | None = None,
        ask: Ask | None = None,
        kafka: Mapping[str, str] | None = None,
    ) -> None:
        """`providers`: what references in configs may read; they are resolved in the child alone."""
        self._kafka = dict(kafka or {})
        self._providers = dict(providers)
        self._partitions = partitions
        self._ends = ends
        self._ask = ask or run_child

    def read(self, connector: Connector) -> list[ConnectorOffset]:
        answer = self._asked(self._question(connector, 0, "read"))
        rows = sorted((str(topic), int(number), int(offset)) for topic, number, offset in answer["offsets"])
        return [ConnectorOffset({PARTITION: number, TOPIC: topic}, {OFFSET: offset}) for topic, number, offset in rows]

    def alter(
        self, connector: Connector, barrier: int, changes: Sequence[ConnectorOffset] | None, *, dry_run: bool = False
    ) -> bool:
        rows = None if changes is None else self._rows(changes, connector.topic_prefixes)
        if not dry_run:
            self._asked(self._question(connector, barrier, "alter") | {"changes": rows})
        return True

    def _rows(self, changes: Sequence[ConnectorOffset], prefixes: Sequence[str]) -> list[tuple[str, int, int | None]]:
        there = self._partitions()
        # An answer about another topic would tell that it is there, and where it ends.
        access_of(self._providers, prefixes).check_read((item.partition[TOPIC] for item in changes), lambda _: there)
        rows = []
        for index, item in enumerate(changes):
            topic, number = item.partition[TOPIC], item.partition[PARTITION]
            if not 0 <= number < there.get(topic, 0):
                has = f"has {there[topic]} partitions" if topic in there else "does not exist"
                text = f"there is no partition {number} of topic {topic}: the topic {has}"
                raise CdcError(UNKNOWN_PARTITION, text, where={"index": index})
            rows.append((topic, number, None if item.offset is None else item.offset[OFFSET]))
        self._check_ends(rows)
        return rows

    def _check_ends(self, rows: Sequence[tuple[str, int, int | None]]) -> None:
        """A sink that was told to go on past the end would leave out what is written until then."""
        wanted: dict[str, set[int]] = {}
        for topic, number, offset in rows:
            if offset:
                wanted.setdefault(topic, set()).add(number)
        ends = {topic: self._ends(topic, sorted(numbers)) for topic, numbers in wanted.items()} if self._ends else {}
        for index, (topic, number, offset) in enumerate(rows):
            end = ends.get(topic, {}).get(number)
            if offset and end is not None and offset > end:
                text = f"partition {number} of topic {topic} ends at offset {end}: {offset} is past it"
                raise CdcError(BAD_POSITION, text, where={"index": index}, hint=f"Take an offset of at most {end}.")

    def _asked(self, question: JsonObject) -> JsonObject:
        answer = self._ask(question)
        error = answer.get("error")
        if error is None:
            return answer
        if error["code"] in NOT_OFFERED:
            raise CdcError(error["code"], error["message"], hint=error["hint"])
        if error["kind"] == "fenced":
            raise CdcError(INTERRUPTED, error["message"], where=error.get("where"))
        raise CdcError(REFUSED, f"[{error['code']}] {error['message']}", where=error.get("where"), hint=error["hint"])

    def _question(self, connector: Connector, barrier: int, what: str) -> dict[str, Any]:
        return {
            "do": what,
            "connector": connector.name,
            "config": dict(connector.config),
            "epoch": [barrier, 0],
            "providers": self._providers,
            "kafka": self._kafka,
            "changes": None,
        }


def run_child(question: JsonObject, timeout_s: float = TIMEOUT_S, command: Sequence[str] = COMMAND) -> JsonObject:
    answer = call_child(command, question, timeout_s)
    if answer.code is None:
        raise CdcError(UNFINISHED, f"no answer within {timeout_s:g} s")
    try:
        return parse_message(answer.out)
    except JsonRefused:
        raise CdcError(UNFINISHED, f"the process that asks the target ended with {answer.code}") from None

"""Batches that go from Kafka's messages straight into tables: no record is made of any of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.record_target import MessageBatch, TargetRecord, WrittenMessages
from cdcworker.connectors.targets.jdbc.changes import ChangeReader, RowsStep
from cdcworker.connectors.targets.jdbc.column_reader import ColumnReader, Columns, Unsuited
from cdcworker.connectors.targets.jdbc.ledger import Partition
from cdcworker.connectors.targets.jdbc.rules import WriteRules
from cdcworker.connectors.targets.jdbc.shapes import RowShape, is_envelope
from cdcworker.connectors.transforms.bounded_cache import BoundedCache
from cdcworker.schemas.encode import UNCHANGED_HEADER

SHAPES_MAX: Final = 1_024
Fresh = Callable[[Partition, int], bool]


class _Known(NamedTuple):
    shape: RowShape
    reader: ColumnReader


class StraightBatch(NamedTuple):
    """What is to be written of a batch of messages."""

    steps: list[RowsStep]
    ends: Mapping[Partition, int]
    written: WrittenMessages


class StraightReader:
    """Reads batches of messages. One thread uses it."""

    def __init__(self, rules: WriteRules, changes: ChangeReader) -> None:
        self._rules = rules
        self._changes = changes
        self._known: BoundedCache[tuple[str, bytes, bytes], _Known | None] = BoundedCache(SHAPES_MAX)

    @property
    def is_suited(self) -> bool:
        """Whether rows can be written so by these rules at all."""
        rules = self._rules
        return rules.key_mode == "record_key" and not rules.key_fields and rules.deletes and not rules.position

    def read(self, batch: MessageBatch, is_new: Fresh) -> StraightBatch:
        """Returns what the messages that are new do. Raises Unsuited."""
        messages: dict[str, list[Any]] = {}
        ends: dict[Partition, int] = {}
        for message, ids in zip(batch.messages, batch.ids, strict=True):
            place, offset = Partition(ids, message.partition()), message.offset()
            if is_new(place, offset):
                ends[place] = offset + 1
                messages.setdefault(message.topic(), []).append(message)
        steps: list[RowsStep] = []
        moments: Counter[int] = Counter()
        newest: dict[str, int] = {}
        for topic, found in messages.items():
            step, columns = self._topic(topic, found, batch)
            steps.append(step)
            moments.update(columns.moments)
            newest[topic] = max(columns.moments, default=found[-1].timestamp()[1])
        if len({step.shape.table for step in steps}) < len(steps):
            raise Unsuited  # two topics go to one table: their order counts
        return StraightBatch(steps, ends, WrittenMessages(sum(map(len, messages.values())), moments, newest))

    def _topic(self, topic: str, messages: Sequence[Any], batch: MessageBatch) -> tuple[RowsStep, Columns]:
        keys, values = [each.key() for each in messages], [each.value() for each in messages]
        if None in keys or any(map(_lacks_columns, messages)):
            raise Unsuited
        key_frames, frames = {key[:5] for key in keys}, {value[:5] for value in values if value is not None}
        if len(key_frames) != 1 or len(frames) != 1:
            raise Unsuited
        known = self._learned(topic, key_frames.pop(), frames.pop(), messages, batch)
        columns = known.reader.read(keys, values)
        last = dict(zip(columns.keys, range(len(keys)), strict=True))
        ops, rows = columns.ops, columns.rows
        step = RowsStep(known.shape)
        step.written[frozenset()] = [rows[at] for at in last.values() if ops[at] != "d"]
        step.deleted = [key for key, at in last.items() if ops[at] == "d"]
        return step, columns

    def _learned(
        self, topic: str, key_frame: bytes, frame: bytes, messages: Sequence[Any], batch: MessageBatch
    ) -> _Known:
        place = (topic, key_frame, frame)
        if place not in self._known:
            # Of one record it is found out what all of them look like.
            first = next(each for each in messages if each.value() is not None)
            record = batch.record_of(first, "")
            self._known[place] = self._made(record, batch, key_frame, frame)
        known = self._known[place]
        if known is None:
            raise Unsuited
        return known

    def _made(self, record: TargetRecord, batch: MessageBatch, key_frame: bytes, frame: bytes) -> _Known | None:
        shape = self._changes.shape_of(record)
        if shape is None or not is_envelope(record.value_schema):
            return None
        key, value = (batch.schema_of(int.from_bytes(each[1:], "big")) for each in (key_frame, frame))
        try:
            return _Known(shape, ColumnReader(key, value, shape))
        except Unsuited:
            return None


def _lacks_columns(message: Any) -> bool:
    headers = message.headers()
    return bool(headers) and any(name == UNCHANGED_HEADER for name, _ in headers)

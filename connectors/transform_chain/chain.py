"""The chain of transforms that a config makes: each with its predicate, one behind the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdcworker.connectors.transforms.data import ConnectRecord, DataError
from cdcworker.connectors.transforms.transform import Predicate, Transform
from cdcworker.schemas.errors import CdcError, declare

FAILED = declare(
    "transform.failed",
    "data",
    "A transform cannot be applied to a record",
    "Correct the transform that the error names, or give it a predicate that leaves such records out (TopicNameMatches,"
    " RecordIsTombstone). The table comes back when the connector's config is changed, or when a snapshot of it is asked for.",
)


@dataclass(frozen=True, slots=True)
class Stage:
    """A transform of a chain. It is applied where the predicate is met, with `negate` where it is not."""

    alias: str
    transform: Transform
    predicate: Predicate | None = None
    negate: bool = False


class TransformChain:
    """Applies transforms in their order, and counts the records that each of them leaves out."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = tuple(stages)
        self._filtered: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._stages)

    def apply(self, record: ConnectRecord) -> ConnectRecord | None:
        """Returns what becomes of a record; None: nothing. Raises CdcError `transform.failed`, which names the transform."""
        for stage in self._stages:
            if stage.predicate is not None and stage.predicate.test(record) is stage.negate:
                continue
            try:
                changed = stage.transform.apply(record)
            except DataError as error:
                text = f"transforms.{stage.alias}: {error}"
                raise CdcError(FAILED, text, where={"transform": stage.alias}) from None
            if changed is None:
                self._filtered[stage.alias] = self._filtered.get(stage.alias, 0) + 1
                return None
            record = changed
        return record

    def take_filtered(self) -> dict[str, int]:
        """Returns how many records were left out since the last call, by the transform's name in the config."""
        taken, self._filtered = self._filtered, {}
        return taken

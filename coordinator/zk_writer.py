"""The leader's pen where no broker checks a proof: the claim in the log is what counts (see `claim`)."""

from __future__ import annotations

from typing import Any

from cdcworker.coordinator.api import Stale, Term
from cdcworker.coordinator.kafka_writer import KafkaWriter


class ClaimedWriter(KafkaWriter):
    """Writes for a lock's holder. Its first write has to be the claim, its second comes after that was read back."""

    @staticmethod
    def _checked(term: Term) -> Any:
        if term.proof is not None or not term.ensemble:
            raise Stale("not the term of a lock")
        return None

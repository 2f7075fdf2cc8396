"""The leader's writer with ZooKeeper: no broker checks a proof, the claim in the config log counts (`leader_claim`)."""

from __future__ import annotations

from typing import Any

from cdcworker.coordinator.api import Term, TermOver
from cdcworker.coordinator.kafka.leader_writer import KafkaLeaderWriter


class ClaimedWriter(KafkaLeaderWriter):
    """Writes for the holder of the lock. Its first write is the claim; further ones follow after the claim was read
    back."""

    @staticmethod
    def _checked(term: Term) -> Any:
        if term.proof is not None or not term.ensemble:
            raise TermOver("not the term of a lock")
        return None

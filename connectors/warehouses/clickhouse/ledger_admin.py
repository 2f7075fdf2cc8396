"""The ledger in a ClickHouse warehouse as a person looks at it, or alters it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdcworker.connectors.api.sink import LedgerAccess, SinkOffsets
from cdcworker.connectors.sink_errors import FENCED
from cdcworker.connectors.warehouses.clickhouse.client import Client
from cdcworker.connectors.warehouses.clickhouse.ledger import ClickHouseLedger
from cdcworker.schemas.errors import CdcError


@dataclass(frozen=True, slots=True)
class ClickHouseLedgerAdmin:
    """The ledger of one sink."""

    client: Client
    access: LedgerAccess

    def offsets(self) -> SinkOffsets:
        states = self._states().values()
        return {(state.topic, int(number)): at for _, state in states for number, at in state.offsets.items()}

    def alter(self, changes: SinkOffsets | None) -> None:
        """Sets offsets and fences off every task with a lower epoch; the rows stay, and those that are read again are older than
        them or the same."""
        ledger, epoch, sink = self._ledger(), self.access.epoch, self.access.connector
        ledger.create()
        states = ledger.states()
        if any(state.epoch > epoch for _, state in states.values()):
            raise CdcError(FENCED, "a newer task has started meanwhile", where={"sink": sink})
        ledger.raise_fence(epoch, every_task=True)
        ledger.commit([(place, state.altered(changes)) for place, state in states.values()], epoch)

    def trace(self, change: Mapping[str, Any]) -> dict[str, Any]:
        return {"next_offset": self.offsets().get((change["topic"], change["partition"]))}

    def _ledger(self) -> ClickHouseLedger:
        return ClickHouseLedger(self.client, self.access.connector)

    def _states(self) -> Mapping[str, Any]:
        ledger = self._ledger()
        return ledger.states() if ledger.is_there() else {}

"""The records of one leader write while it is put together, and the state that they lead to."""

from __future__ import annotations

import json
from dataclasses import InitVar, dataclass, field, replace

from cdcworker.coordinator.api import LogRecord
from cdcworker.coordinator.core.herd_state import AwaitingReadBack, StateTransition
from cdcworker.coordinator.log.config_fold import FORMAT, ClusterStateDraft, task_epoch
from cdcworker.coordinator.model import ClusterState


@dataclass(slots=True)
class WriteBatch:
    """The records of one leader write, and the cluster state as it will be once they are read back."""

    transition: StateTransition
    base: InitVar[ClusterState]
    records: list[LogRecord] = field(default_factory=list)
    replies: dict[str, AwaitingReadBack] = field(default_factory=dict)
    """The replies to the decided requests, by request id; the id of their write is set when the batch is sent."""
    _fold: ClusterStateDraft = field(init=False)

    def __post_init__(self, base: ClusterState) -> None:
        self._fold = ClusterStateDraft(base)

    @property
    def draft(self) -> ClusterState:
        """The state with all records of the batch so far."""
        return self._fold.state

    def add(self, record: LogRecord, request_id: str = "") -> None:
        """Adds a record under the present leader epoch; `request_id` names the request that it belongs to."""
        headers = {"e": str(self.transition.lead.epoch), **self.transition.record_headers(), "v": FORMAT}
        if request_id:
            headers["d"] = request_id
        record = replace(record, headers=headers)
        self.records.append(record)
        self._fold.add(record)

    def next_task_epoch(self) -> int:
        """Returns a new task epoch, larger than all before."""
        lead = self.transition.lead
        self.transition.lead = replace(lead, counter=lead.counter + 1)
        return task_epoch(lead.epoch, lead.counter + 1)


def record_size(record: LogRecord) -> int:
    """Returns about how many bytes a record takes in Kafka."""
    if record.value is None:
        return len(record.key)
    return len(record.key) + len(
        json.dumps(record.value, separators=(",", ":"), ensure_ascii=False).encode(errors="backslashreplace")
    )

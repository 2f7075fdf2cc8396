"""The rebalance journal: why each task changed hands, in a ring of records beside the assignments they explain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cdcworker.coordinator.leader import Batch
from cdcworker.coordinator.model import ClusterState, JournalEntry, Move
from cdcworker.coordinator.state import journal_record
from cdcworker.coordinator.versions import may_write

MOVES_MAX = 500
"""Of one entry; a larger decision takes several."""

NEW_TASK = "new task"
NEW_SET = "new task set"
UNASSIGNED = "was unassigned"
BALANCE = "balance"
DRAIN = "drain"
RESTART = "restart announced"
CRASH = "crash"
RETURNED = "worker returned"
NOT_BACK = "worker did not return in time"
PROBED_GONE = "worker probed gone"
LEASE_LAPSED = "lease lapsed"
REBOOTED = "worker restarted"
LEFT = "worker left"
NO_LONGER_WANTED = "connector stopped, deleted or smaller"
NO_PLUGIN = "no worker has the plugin"
NO_WORKER = "no worker takes tasks"
FENCED = "its fence is set"


def record_moves(batch: Batch, moves: Sequence[Move]) -> None:
    """In the write that makes them so; nothing while somebody is there who cannot read it."""
    turn = batch.turn
    if not moves or not may_write("journal", turn.live().values()):
        return
    seq = last_seq(batch.draft)
    for start in range(0, len(moves), MOVES_MAX):
        part = tuple(moves[start : start + MOVES_MAX])
        seq += 1
        cause = Counter(move.why for move in part).most_common(1)[0][0]
        batch.add(journal_record(JournalEntry(seq, turn.now.wall_ms, cause, part)))


def last_seq(state: ClusterState) -> int:
    return max((entry.seq for entry in state.journal.values()), default=0)

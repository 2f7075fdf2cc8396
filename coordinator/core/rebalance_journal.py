"""The rebalance journal: why each task changed its owner, in a ring of records in the config log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cdcworker.coordinator.core.write_batch import WriteBatch
from cdcworker.coordinator.log.config_fold import journal_record
from cdcworker.coordinator.model import ClusterState, JournalEntry, TaskMove
from cdcworker.coordinator.versions import may_write

MOVES_MAX = 500
"""The most moves in one entry; a larger decision takes several entries (INV-10)."""

# Causes of a move, as they stand in the journal and in REST.
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


def record_moves(batch: WriteBatch, moves: Sequence[TaskMove]) -> None:
    """Adds the moves to the write that makes them; nothing while a live worker is too old to read the journal."""
    transition = batch.transition
    if not moves or not may_write("journal", transition.live_workers().values()):
        return
    seq = last_seq(batch.draft)
    for start in range(0, len(moves), MOVES_MAX):
        part = tuple(moves[start : start + MOVES_MAX])
        seq += 1
        cause = Counter(move.why for move in part).most_common(1)[0][0]
        batch.add(journal_record(JournalEntry(seq, transition.now.wall_ms, cause, part)))


def last_seq(state: ClusterState) -> int:
    """Returns the number of the newest entry, 0 if there is none."""
    return max((entry.seq for entry in state.journal.values()), default=0)

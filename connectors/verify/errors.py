"""Error codes of comparisons and of repairs after them."""

from __future__ import annotations

from typing import Final

from cdcworker.schemas.errors import declare

UNFIT: Final = declare(
    "verify.unfit",
    "config",
    "The connector cannot be compared with its source",
    "Verify a sink whose warehouse is PostgreSQL, MySQL or a lake, and name its source with --source if its topics do not tell.",
)
BEHIND: Final = declare(
    "verify.behind",
    "transient",
    "The warehouse did not reach the position at which the source was read",
    "Look at the lag and the state of both connectors; verify again once they have caught up.",
)
TIMEOUT: Final = declare(
    "verify.timeout",
    "transient",
    "The comparison did not end within its time",
    "Raise verify.timeout.ms or verify.rows.per.s, or compare fewer tables at a time with --table.",
)
BUSY: Final = declare(
    "verify.busy",
    "transient",
    "Another comparison runs",
    "Wait for its end: cdcworker verify SINK --last shows how far it is.",
)
INTERRUPTED: Final = declare(
    "verify.interrupted",
    "transient",
    "The worker that compared has ended, or leads no more",
    "Verify again.",
)
NO_COMPARISON: Final = declare(
    "repair.no_comparison",
    "transient",
    "The comparison whose rows are to be repaired is not kept any more",
    "Compare again: cdcworker verify SINK --repair does both. The leader keeps the last comparison, and a new leader none.",
)
REPAIR_UNFIT: Final = declare(
    "repair.unfit",
    "config",
    "The source cannot repair rows now",
    "Resume the source, whose stream brings the rows; the message says what it is.",
)
REPAIR_BUSY: Final = declare(
    "repair.busy",
    "transient",
    "The source carries out another repair",
    "Wait for its end: cdcworker snapshots list SOURCE shows it; cdcworker verify SINK --repair waits by itself.",
)
UNREPAIRED: Final = declare(
    "repair.unrepaired",
    "data",
    "Source and warehouse still differ after the repair",
    "The report names what was not repaired and why; look for who else writes into the warehouse, then repair again.",
)
STALLED: Final = declare(
    "repair.stalled",
    "transient",
    "The source has not handed on the rows of the repair",
    "Look at the state of the source; the snapshot goes on by itself. Repair again once it has ended.",
)
TABLE: Final = declare(
    "verify.table",
    "data",
    "A table could not be read for the comparison",
    "The message names the database's complaint; a statement that takes too long needs a higher"
    " verify.statement.timeout.ms or fewer verify.range.rows.",
)

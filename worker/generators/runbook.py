"""What stays safe under each error: the third part of the manual beside what a code means and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cdcworker.schemas.errors import CODES, ErrorCode

NOTHING_DONE: Final = "Nothing was changed: it was refused before anything was done."
NOT_STARTED: Final = "Nothing was begun: what is stored and what runs elsewhere is as it was."
SOURCE: Final = (
    "The stored position stays at the last committed Kafka transaction, and the slot keeps the log from there on: nothing is"
    " lost, and nothing is delivered twice when the task goes on."
)
BINLOG: Final = (
    "The stored position stays at the last committed Kafka transaction: nothing is lost while the server still has its binary"
    " log from there on, and nothing is delivered twice when the task goes on."
)
QUERY: Final = (
    "The stored position stays at the last page of rows that Kafka has committed. The database was only read: the rows from"
    " that position on are read when the task goes on."
)
GAP: Final = (
    "Everything up to the stored position is delivered and stays. The task halts rather than go on behind a gap, and it"
    " never starts from now by itself."
)
TABLE: Final = (
    "What was delivered stays, and the position does not pass the change unless its table is held back; with"
    " table.failure.policy=quarantine the other tables go on."
)
SINK: Final = (
    "The ledger stays with the last batch, in the same step as its rows: whatever came after is still in Kafka and is"
    " applied once when the task goes on."
)
RECORDS: Final = (
    "The offsets stay with the last batch that the target has taken: whatever came after is still in Kafka and is written"
    " when the task goes on. A record that comes again has the same id."
)
OFFSETS: Final = "The offsets are as they were: all of a change is done, or nothing."
LETTERS: Final = (
    "Every dead letter that is not applied: it leaves its place in the same step in which its row is written."
)
OWNER: Final = "The other owner's work: everything that this one still had open is refused by Kafka or by the target."
CLUSTER: Final = (
    "What is committed to the logs stays, tasks of other workers go on, and stored positions are as they were."
)
KAFKA: Final = (
    "What was committed stays. Open transactions are aborted and seen by no reader; tasks go on from their stored positions"
    " and ledgers."
)
REPAIRED: Final = "Every row that was repaired is as the source has it, and the others are as they were: each comes with the stream, once."
READ_ONLY: Final = "Everything: it only reads. What was found until then is shown, or is found again by asking again."
UNKNOWN: Final = "What was committed stays. Whether this one change happened is not known: read before repeating it."

BY_CODE: Final[Mapping[str, str]] = {
    "coordinator.task_quarantined": "Its positions, or its ledger: it stands still and takes nothing from others until it is restarted.",
    "coordinator.offsets_format": "The stored position itself: half of it is never used.",
    "coordinator.record_too_large": NOTHING_DONE,
    "coordinator.record_refused": "The connector's positions and the record, as they are: the connector is stopped and not deleted.",
    "debezium.offset_unfit": "Both positions, as they are: nothing is taken over by halves.",
    "debezium.snapshot_unfinished": "Both positions, as they are: nothing is taken over by halves.",
    "debezium.transaction_missing": "Both positions, as they are: nothing is taken over by halves.",
    "devstack.jar_mismatch": "The machine: a file whose hash differs is never used.",
    "file.unreadable_line": "The lines before it; the file's position does not pass it.",
    "file.line_too_long": "The lines before it; the file's position does not pass it.",
    "kafka.malformed_record": "The record is not used: no decision and no position rests on what cannot be read.",
    "kafka.record_refused": TABLE,
    "kafka.record_too_large": "The transaction of the record is aborted whole; nothing of it is seen.",
    "spark.maintenance_failed": "The table, as readers and the sink see it: each step of maintenance is one commit that changes no row, or"
    " deletes files that no version which is kept needs.",
    "mysql.log_purged": GAP,
    "mysql.log_reset": GAP,
    "mysql.other_history": GAP,
    "mysql.other_server": GAP,
    "mysql.position_invalid": "The stored position, as it is: it is neither guessed nor replaced.",
    "offsets.unfinished": UNKNOWN,
    "oidc.file_invalid": NOT_STARTED,
    "quota.file_invalid": NOT_STARTED,
    "postgres.diverged": GAP,
    "postgres.other_server": GAP,
    "postgres.position_invalid": "The stored position, as it is: it is neither guessed nor replaced.",
    "postgres.mark_unseen": "Nothing is read or written until the server has answered.",
    "postgres.publication_narrowed": GAP,
    "postgres.restored": GAP,
    "postgres.still_used": "What the other connector uses: it is left as it is, and the deletion goes on.",
    "postgres.slot_advanced": GAP,
    "postgres.slot_in_use": "The slot and whoever reads it: its log is not touched.",
    "postgres.slot_lost": GAP,
    "postgres.slot_missing": GAP,
    "postgres.slot_recreated": GAP,
    "rest.forward_failed": UNKNOWN,
    "rest.no_answer": UNKNOWN,
    "rest.timeout": UNKNOWN,
    "schema.topic_taken": "The topic and its records: it stays with whom it belongs to, nothing is written into it.",
    "sink.commit_denied": RECORDS,
    "sink.commit_failed": RECORDS,
    "sink.dead_letters_unwritable": RECORDS,
    "sink.ledger_unfit": RECORDS,
    "sink.letter_without_place": "The letter, in its topic.",
    "sink.letters_elsewhere": "Every dead letter: nothing was read or sent.",
    "sink.same_cluster": RECORDS,
    "sink.target_hung": RECORDS,
    "sink.target_refuses": RECORDS,
    "sink.target_unavailable": RECORDS,
    "sink.offsets_gone": (
        "Everything that was applied. Records that Kafka has deleted cannot be applied any more: the task halts rather than"
        " leave them out silently."
    ),
    "source.left_open_undecided": "The open records as they are: they are neither dropped nor shown before somebody has looked.",
    "source.position_too_large": "The Kafka transaction is aborted whole; the position stays at the last one that was committed.",
    "source.transaction_too_long": "The Kafka transaction is aborted whole; the position stays before the source's transaction.",
    "spark.data_lost": (
        "Everything that was applied. Records that Kafka has deleted cannot be applied any more: the task halts rather than"
        " leave them out silently."
    ),
    "spark.ledger_moved": "The target: the batch is given up whole, since somebody else has applied a part of it.",
    "worker.stopped": UNKNOWN,
    "worker.herder_ended": "Its tasks are handed to other workers once its session has lapsed, and go on from what they have committed.",
    "zookeeper.authorization": CLUSTER,
    "topic.internal": "The topic: nothing of it is read and nothing is written to it.",
    "topic.not_granted": "The topic: nothing of it is read and nothing is written to it.",
}
PLUGIN = "What was committed before, with its position or its offsets: the task goes on from there."
BY_KIND: Final[Mapping[tuple[str, str], str]] = {
    ("alerts", "config"): NOT_STARTED,
    ("auth", "config"): NOT_STARTED,
    ("changes", "config"): READ_ONLY,
    ("changes", "transient"): READ_ONLY,
    ("check", "internal"): READ_ONLY,
    ("check", "transient"): READ_ONLY,
    ("cli", "config"): NOTHING_DONE,
    (
        "cli",
        "environment",
    ): "The cluster was not asked to change anything by it; a file that was there is replaced in one step, or not at all.",
    ("config", "config"): NOTHING_DONE,
    ("config", "environment"): NOT_STARTED,
    ("coordinator", "config"): CLUSTER,
    ("coordinator", "environment"): CLUSTER,
    ("coordinator", "fenced"): OWNER,
    ("coordinator", "transient"): "What the task has committed: it goes on from there, here or on another worker.",
    ("datagen", "config"): SOURCE,
    ("datagen", "data"): SOURCE,
    ("datagen", "transient"): SOURCE,
    ("devstack", "config"): NOT_STARTED,
    ("devstack", "environment"): NOT_STARTED,
    ("dev", "config"): READ_ONLY,
    ("doctor", "config"): READ_ONLY,
    ("doctor", "environment"): READ_ONLY,
    ("explain", "transient"): READ_ONLY,
    ("file", "config"): "The file and the positions in it are as they were: nothing is read or written beyond them.",
    ("file", "environment"): "The file and the positions in it are as they were.",
    ("file", "fenced"): OWNER,
    ("file", "transient"): "Whole lines up to the ledger; what lies behind it is cut off and written again, once.",
    ("http", "config"): PLUGIN,
    (
        "internal",
        "internal",
    ): "What was committed: the task or the request ends, and goes on, or is repeated, from there.",
    ("kafka", "config"): KAFKA,
    ("kafka", "environment"): KAFKA,
    ("kafka", "fenced"): OWNER,
    ("kafka", "internal"): KAFKA,
    ("kafka", "transient"): KAFKA,
    ("letters", "environment"): LETTERS,
    ("letters", "transient"): LETTERS,
    ("mysql", "config"): BINLOG,
    ("mysql", "data"): TABLE,
    ("mysql", "environment"): BINLOG,
    ("mysql", "transient"): BINLOG,
    ("oidc", "config"): NOTHING_DONE,
    ("oidc", "transient"): NOTHING_DONE,
    ("offsets", "config"): OFFSETS,
    ("offsets", "environment"): OFFSETS,
    ("offsets", "fenced"): OFFSETS,
    ("plugin", "config"): PLUGIN,
    ("plugin", "data"): PLUGIN,
    ("plugin", "environment"): "All other connectors run. Tasks of the plugin wait for a worker that has it.",
    ("plugin", "internal"): PLUGIN,
    ("plugin", "transient"): PLUGIN,
    ("postgres", "config"): SOURCE,
    ("postgres", "data"): TABLE,
    ("postgres", "internal"): SOURCE,
    ("postgres", "transient"): SOURCE,
    ("query", "config"): QUERY,
    ("query", "data"): QUERY,
    ("query", "environment"): QUERY,
    ("quickstart", "config"): NOT_STARTED,
    ("quickstart", "environment"): "Everything that it made is in one folder of its own, which goes when it ends.",
    ("quota", "config"): NOTHING_DONE,
    ("rest", "config"): NOTHING_DONE,
    ("rest", "environment"): NOTHING_DONE,
    ("rest", "transient"): NOTHING_DONE,
    ("registry", "config"): SOURCE,
    ("registry", "data"): TABLE,
    ("registry", "transient"): SOURCE,
    ("schema", "config"): SOURCE,
    ("schema", "data"): (
        "What was written and applied before. The record is neither changed nor skipped: a source does not write it, a sink"
        " halts before it, or sets it aside where errors.tolerance=all says so."
    ),
    ("sink", "config"): SINK,
    ("sink", "data"): RECORDS,
    ("sink", "fenced"): OWNER,
    ("sink", "transient"): SINK,
    ("source", "data"): TABLE,
    ("source", "transient"): SOURCE,
    ("repair", "config"): NOTHING_DONE,
    ("repair", "data"): REPAIRED,
    ("repair", "transient"): REPAIRED,
    ("spark", "config"): SINK,
    ("spark", "data"): SINK,
    ("spark", "environment"): SINK,
    ("spark", "fenced"): OWNER,
    ("spark", "internal"): SINK,
    ("spark", "transient"): SINK,
    ("task", "internal"): NOT_STARTED,
    ("tls", "config"): NOT_STARTED,
    ("transform", "config"): READ_ONLY,
    ("transform", "data"): TABLE,
    ("verify", "config"): READ_ONLY,
    ("verify", "data"): READ_ONLY,
    ("verify", "transient"): READ_ONLY,
    ("worker", "config"): NOT_STARTED,
    ("worker", "transient"): "What the task has committed: it goes on from there, here or on another worker.",
    ("zookeeper", "config"): CLUSTER,
    ("zookeeper", "environment"): CLUSTER,
    ("zookeeper", "transient"): CLUSTER,
}


def kept(code: ErrorCode) -> str:
    """Returns what stays safe under an error; "" for a code without a text, which a test refuses."""
    return BY_CODE.get(code.name) or BY_KIND.get((code.name.partition(".")[0], code.kind), "")


def unused() -> list[str]:
    """Entries that no code has any more, or that another entry hides for all of them."""
    by_kind = {(code.name.partition(".")[0], code.kind) for code in CODES.values() if code.name not in BY_CODE}
    return [
        *(name for name in BY_CODE if name not in CODES),
        *(f"{area} {kind}" for area, kind in BY_KIND if (area, kind) not in by_kind),
    ]

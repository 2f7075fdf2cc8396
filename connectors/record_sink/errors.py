"""What may go wrong between Kafka and a target of records, by code."""

from __future__ import annotations

from typing import Final

from cdcworker.schemas.errors import declare

TARGET_UNAVAILABLE: Final = declare(
    "sink.target_unavailable",
    "transient",
    "The target does not take records now",
    "Look at the target. The task writes the batch again by itself, until max.retries or errors.retry.timeout.",
)
TARGET_HUNG: Final = declare(
    "sink.target_hung",
    "transient",
    "The target has not answered a batch in time",
    "Look at the target. If it needs longer, raise target.timeout.ms or lower batch.max.size.",
)
TARGET_REFUSES: Final = declare(
    "sink.target_refuses",
    "config",
    "The target refuses every request of the sink",
    "Correct the address, the method or the login that the message names. No record was set aside for it.",
)
RECORD_REFUSED: Final = declare(
    "sink.record_refused",
    "data",
    "The target will not take a record",
    "Look at the record at the topic, partition and offset that are named, and at the target's own log. With"
    " errors.tolerance=all such records are dead letters and the others go on.",
)
DEAD_LETTERS_MANY: Final = declare(
    "sink.dead_letters_many",
    "data",
    "Too many records in a row were refused",
    "Look why: most likely the target, a converter or a transform is wrong, not so many records. Raise"
    " errors.deadletterqueue.consecutive.max if they really are.",
)
DEAD_LETTERS_UNWRITABLE: Final = declare(
    "sink.dead_letters_unwritable",
    "config",
    "The topic of dead letters cannot be written",
    "Create the topic, or let the worker create it; give the worker's user the right to write it, and a limit of message sizes as"
    " large as that of the topics that are read.",
)
LETTERS_ELSEWHERE: Final = declare(
    "sink.letters_elsewhere",
    "environment",
    "The sink has no dead letters that could be shown or sent again",
    "Set errors.tolerance=all and errors.deadletterqueue.topic.name. Where the connector cannot send letters again, stop it and set its"
    " offset back to the first of the records.",
)
LETTER_WITHOUT_PLACE: Final = declare(
    "sink.letter_without_place",
    "data",
    "A dead letter does not say where its record was",
    "It stays in its topic and is not sent again: another program has written it, or a worker of an earlier version without"
    " errors.deadletterqueue.context.headers.enable=true. Read it there with a program of Kafka.",
)
SINK_FENCED: Final = declare(
    "sink.fenced", "fenced", "Another process runs this task now", "Nothing: the newer owner goes on."
)
COMMIT_FAILED: Final = declare(
    "sink.commit_failed",
    "transient",
    "The sink's offsets could not be committed to Kafka",
    "Look at the brokers; the task starts again from what is committed. Records that the target has taken since come again with"
    " the same ids.",
)
COMMIT_DENIED: Final = declare(
    "sink.commit_denied",
    "config",
    "The broker denies the sink its group or its transactional id",
    "Grant the ACLs that `cdcworker roles kafka` prints: Read on the sink's group, Describe and Write on transactional ids.",
)

"""The keys that every sink of records has, and what they mean to the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.config import converters
from cdcworker.connectors.config.common_keys import ACCEPTED, TASK_KEYS, TASKS_MAX, topic_checks
from cdcworker.connectors.config.definition import Check, ConfigDef, ConfigKey, between, is_regex, matches, one_of
from cdcworker.connectors.converters.config import converter_keys
from cdcworker.connectors.transform_chain.config import PREDICATES_KEY, TRANSFORMS_KEY, transform_checks, transform_keys

BATCH_DEFAULT: Final = 500
LETTERS: Final = "errors.deadletterqueue.topic.name"
_SOURCE_ONLY: Final = ("topic.creation.", "exactly.once", "transaction.")
_OWN: Final = ("errors.", "key.conv", "value.conv", *_SOURCE_ONLY)
_TOPIC_NAME: Final = matches(r"[A-Za-z0-9._\-]{0,249}", "letters, digits, dot, hyphen and underscore")


def _topic_keys() -> Iterable[ConfigKey]:
    yield ConfigKey(
        "topics", "LIST", [], importance="HIGH", group="Topics", topics="names",
        doc="Topics to read; one that does not exist yet is waited for.",
    )  # fmt: skip
    yield ConfigKey(
        "topics.regex", validator=is_regex, importance="HIGH", group="Topics", topics="pattern",
        doc="A regular expression; every topic whose whole name it matches is read.",
    )  # fmt: skip


def _batch_keys() -> Iterable[ConfigKey]:
    group = "Batches"
    yield ConfigKey(
        "batch.max.size", "INT", group=group, validator=between(1, 100_000), importance="HIGH",
        doc=f"Most records of one batch. Default: {BATCH_DEFAULT}, unless the target says otherwise.",
    )  # fmt: skip
    yield ConfigKey(
        "batch.max.bytes", "INT", 1_048_576, group=group, validator=between(1_024, 67_108_864),
        doc="A batch ends with the record that reaches so many bytes of keys and values in Kafka.",
    )  # fmt: skip
    yield ConfigKey(
        "batch.linger.ms", "INT", 5, group=group, validator=between(0, 60_000),
        doc="How long a batch waits for more records. 0: each record is written at once. Larger batches come by themselves while"
        " the target is busy.",
    )  # fmt: skip
    yield ConfigKey(
        "max.in.flight.batches", "INT", 4, group=group, validator=between(1, 32),
        doc="Most batches that one task writes at the same time. Each partition is in one of them at a time, so its order stays.",
    )  # fmt: skip
    yield ConfigKey(
        "target.timeout.ms", "INT", 60_000, group=group, validator=between(100, 3_600_000),
        doc="A batch that the target has not answered after so long is broken off and written again.",
    )  # fmt: skip
    yield ConfigKey(
        "offset.commit.interval.ms", "INT", 1_000, group=group, validator=between(50, 60_000), importance="LOW",
        doc="How often offsets of what the target has taken are committed. After a crash so much comes again, with the same ids.",
    )  # fmt: skip


def _retry_keys() -> Iterable[ConfigKey]:
    group = "Retries"
    yield ConfigKey(
        "max.retries", "INT", -1, group=group, validator=between(-1),
        doc="How often a batch is written again while the target is away or overloaded; then the task fails, and is started"
        " again. -1: until errors.retry.timeout.",
    )  # fmt: skip
    yield ConfigKey(
        "retry.backoff.ms", "INT", 500, group=group, validator=between(1, 3_600_000),
        doc="Pause before the first of these tries; it doubles with each further one. What the target asks for (Retry-After)"
        " counts where it is longer.",
    )  # fmt: skip
    yield ConfigKey(
        "errors.retry.timeout", "LONG", -1, group=group, validator=between(-1),
        doc="How long, in ms, a batch is written again. -1: until the target is back. 0: never.",
    )  # fmt: skip
    yield ConfigKey(
        "errors.retry.delay.max.ms", "LONG", 60_000, group=group, validator=between(1, 3_600_000),
        doc="Where the doubling of the pause ends.",
    )  # fmt: skip


def _error_keys() -> Iterable[ConfigKey]:
    group = "Error handling"
    yield ConfigKey(
        "errors.tolerance", default="none", group=group, validator=one_of("none", "all"), recommended=("none", "all"),
        doc="none: a record that cannot be read, transformed or written halts the task. all: it is a dead letter, or dropped where"
        f" {LETTERS} is not set.",
    )  # fmt: skip
    yield ConfigKey(
        LETTERS, default="", group=group, validator=_TOPIC_NAME, topics="name",
        doc="Topic of dead letters: each as it came, in the transaction that commits the offsets behind it.",
    )  # fmt: skip
    yield ConfigKey(
        "errors.deadletterqueue.topic.replication.factor", "SHORT", -1, group=group, validator=between(-1, 1_000),
        doc="Of the topic when it has to be created; -1: the brokers' default.",
    )  # fmt: skip
    yield ConfigKey(
        "errors.deadletterqueue.context.headers.enable", "BOOLEAN", False, group=group,
        doc="Whether dead letters have headers `__connect.errors.*` that say where a record was, at which stage it failed and"
        " why, without values.",
    )  # fmt: skip
    yield ConfigKey(
        "errors.deadletterqueue.consecutive.max", "INT", 1_000, group=group, validator=between(0), importance="LOW",
        doc="So many dead letters without a record in between that the target has taken halt the task: then the target or a"
        " transform is wrong, not the records. 0: no limit.",
    )  # fmt: skip
    yield ConfigKey(
        "errors.log.enable", "BOOLEAN", False, group=group,
        doc="Whether each record that is set aside is a line of the log: its place and why, never its values.",
    )  # fmt: skip
    yield ConfigKey(
        "errors.log.include.messages", "BOOLEAN", False, group=group, note="Row values are never logged.",
        doc="Whether the line names the record's topic, partition, offset and timestamp, as in Kafka Connect. It always does.",
    )  # fmt: skip


_CHECK_TRANSFORMS: Final = transform_checks(None)


def _checks(own: Check | None) -> Check:
    def check(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
        yield from _CHECK_TRANSFORMS(config)
        if config[LETTERS] and config[LETTERS] in config["topics"]:
            yield LETTERS, "is one of the topics that are read: dead letters would come again for ever"
        yield from own(config) if own else ()

    return check


def config_def(keys: Sequence[ConfigKey], accepted: Mapping[str, str], check: Check | None = None) -> ConfigDef:
    """Returns the definition of a sink of records: the target's own keys first."""
    return ConfigDef(
        [
            *keys,
            *_topic_keys(),
            TASKS_MAX,
            *_batch_keys(),
            *_retry_keys(),
            *_error_keys(),
            TRANSFORMS_KEY,
            PREDICATES_KEY,
            *converter_keys(),
            *TASK_KEYS,
        ],
        accepted={
            **{name: note for name, note in ACCEPTED.items() if not name.startswith(_OWN)},
            **converters.ACCEPTED,
            "header.converter": "Headers are read as bytes.",
            "header.converter.*": "Headers are read as bytes.",
            "name": "",
            "connector.class": "",
            **{key.former: f"Counts as {key.name}." for key in keys if key.former},
            **accepted,
        },
        check=_checks(check),
        more=transform_keys,
        always=topic_checks,
    )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What a parsed config says to the engine. Times are in seconds."""

    batch_records: int = BATCH_DEFAULT
    batch_bytes: int = 1_048_576
    linger_s: float = 0.005
    idle_s: float = 0.0
    """A batch ends when no record has come for so long; 0: it does not."""
    lanes: int = 4
    target_timeout_s: float = 60.0
    commit_s: float = 1.0
    retries_max: int = -1
    backoff_s: float = 0.5
    backoff_max_s: float = 60.0
    retry_timeout_s: float = -1.0
    tolerant: bool = False
    letters_topic: str = ""
    replication_factor: int = -1
    letter_headers: bool = False
    refused_in_row_max: int = 1_000
    logs_refused: bool = False


def settings_of(config: Mapping[str, Any], batch_default: int) -> EngineSettings:
    """Returns what a parsed config says to the engine."""
    timeout = config["errors.retry.timeout"]
    return EngineSettings(
        batch_records=config["batch.max.size"] or batch_default,
        batch_bytes=config["batch.max.bytes"],
        linger_s=config["batch.linger.ms"] / 1000,
        lanes=config["max.in.flight.batches"],
        target_timeout_s=config["target.timeout.ms"] / 1000,
        commit_s=config["offset.commit.interval.ms"] / 1000,
        retries_max=config["max.retries"],
        backoff_s=config["retry.backoff.ms"] / 1000,
        backoff_max_s=config["errors.retry.delay.max.ms"] / 1000,
        retry_timeout_s=timeout / 1000 if timeout >= 0 else -1.0,
        tolerant=config["errors.tolerance"] == "all",
        letters_topic=config[LETTERS],
        replication_factor=config["errors.deadletterqueue.topic.replication.factor"],
        letter_headers=config["errors.deadletterqueue.context.headers.enable"],
        refused_in_row_max=config["errors.deadletterqueue.consecutive.max"],
        logs_refused=config["errors.log.enable"],
    )

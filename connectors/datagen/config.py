"""The keys of the `datagen` source, and a task's share of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdcworker.connectors.config import converters
from cdcworker.connectors.config.common_keys import ACCEPTED, SOURCE_KEYS, TASKS_MAX
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey, Importance, between, matches, non_empty, one_of
from cdcworker.connectors.config.topic_creation import group_keys
from cdcworker.connectors.converters.config import converter_keys
from cdcworker.connectors.datagen.injected_faults import FAULTS
from cdcworker.connectors.kit.source_block import source_schema
from cdcworker.connectors.transform_chain.config import PREDICATES_KEY, TRANSFORMS_KEY, transform_checks, transform_keys
from cdcworker.schemas.change import JsonObject

TASKS: Final = "datagen.tasks"
"""In a task's share that an earlier version has made: into how many tasks the rate is split."""
SOURCE_SCHEMA: Final[JsonObject] = source_schema("cdcworker.datagen")


def _row_keys() -> Iterable[ConfigKey]:
    group, key = "Rows", ConfigKey
    high: Importance = "HIGH"
    yield key(
        "topic.prefix",
        required=True,
        importance=high,
        group="Topics",
        validator=matches(r"[A-Za-z0-9._\-]{1,200}", "letters, digits, dot, hyphen and underscore"),
        doc="First part of every topic; a table's topic is `<topic.prefix>.task<N>.<table>`.",
        topics="prefix",
    )
    yield key(
        "tables", "LIST", ["rows"], importance=high, group=group, validator=_tables,
        doc="Tables of each task; all of them get a row of each number, in one source transaction.",
    )  # fmt: skip
    yield key(
        "rows.per.second", "DOUBLE", 10.0, importance=high, group=group, validator=between(-1, 10_000_000),
        doc="Rows of the connector per second, over all tasks and tables. 0: none, -1: as fast as Kafka takes them.",
    )  # fmt: skip
    yield key(
        "max.rows", "LONG", -1, group=group, validator=between(-1),
        doc="Rows of each table after which the task idles; -1: no end.",
    )  # fmt: skip
    yield key("seed", "LONG", 0, group=group, doc="Rows are a function of seed, task, table and number.")
    yield key(
        "keys", "LONG", 0, group=group, validator=between(0),
        doc="How many keys a table has: row `n` changes key `n % keys`. 0: each row is a new key.",
    )  # fmt: skip
    yield key(
        "row.bytes", "INT", 32, group=group, validator=between(0, 900_000), doc="Length of the text column.",
    )  # fmt: skip


def _trouble_keys() -> Iterable[ConfigKey]:
    def chance(name: str, doc: str) -> ConfigKey:
        return ConfigKey(
            name, "DOUBLE", 0.0, importance="LOW", group="Trouble", validator=between(0, 1), doc=doc
        )  # fmt: skip

    yield chance("fail.prob", "Chance of each row that the task fails before it.")
    yield ConfigKey(
        "fail.class", default="transient", importance="LOW", group="Trouble", validator=one_of(*FAULTS),
        recommended=tuple(FAULTS), doc="What kind of failure that is.", connects=False,
    )  # fmt: skip
    yield chance("crash.prob", "Chance of each row that the process kills itself before it.")
    yield chance("hang.prob", "Chance of each row that the task hangs before it, deaf to a stop.")
    yield chance("spin.prob", "Chance of each row that the task loops for ever before it, at full speed.")
    yield ConfigKey(
        "hang.in", default="none", importance="LOW", group="Trouble", validator=one_of("none", "start", "poll", "stop"),
        recommended=("none", "start", "poll", "stop"), doc="Where the task always hangs.",
    )  # fmt: skip
    yield ConfigKey(
        "leak.bytes.per.second", "LONG", 0, importance="LOW", group="Trouble", validator=between(0),
        doc="Memory that the task takes each second and never gives back.",
    )  # fmt: skip


def _tables(names: Sequence[str]) -> str | None:
    if not names:
        return non_empty(names)
    wrong = len(set(names)) != len(names) or any(not name.replace("_", "a").isalnum() for name in names)
    return "expects different names of letters, digits and underscores" if wrong else None


CONFIG_DEF = ConfigDef(
    [
        *_row_keys(),
        TASKS_MAX,
        *_trouble_keys(),
        *converter_keys(),
        TRANSFORMS_KEY,
        PREDICATES_KEY,
        *SOURCE_KEYS,
    ],
    accepted={
        **{name: note for name, note in ACCEPTED.items() if not name.startswith(("key.conv", "value.conv"))},
        **converters.ACCEPTED,
        "name": "",
        "connector.class": "",
        "errors.tolerance": "No record of this source is bad.",
    },
    check=transform_checks(field["name"] for field in SOURCE_SCHEMA["fields"]),
    more=lambda config: (*transform_keys(config), *group_keys(config)),
)


@dataclass(frozen=True, slots=True)
class DatagenSettings:
    """A task's share of a parsed configuration. `rate` are numbers per second; None: no limit."""

    prefix: str
    tables: tuple[str, ...]
    rate: float | None
    rows_max: int | None
    seed: int
    keys: int
    row_bytes: int
    trouble: Mapping[str, Any]


def parse(share: Mapping[str, str]) -> DatagenSettings:
    """CdcError `config.invalid` with all problems at once."""
    raw = CONFIG_DEF.parse({name: text for name, text in share.items() if name != TASKS})
    tables, rate = tuple(raw["tables"]), raw["rows.per.second"]
    return DatagenSettings(
        prefix=raw["topic.prefix"],
        tables=tables,
        rate=rate / len(tables) / int(share.get(TASKS, raw[TASKS_MAX.name])) if rate >= 0 else None,
        rows_max=raw["max.rows"] if raw["max.rows"] >= 0 else None,
        seed=raw["seed"],
        keys=raw["keys"],
        row_bytes=raw["row.bytes"],
        trouble={key.name: raw[key.name] for key in _trouble_keys()},
    )

"""The reference pages of configuration keys: the worker's properties, and one page per connector."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cdcworker.connectors.config.common_keys import CONNECTION_KEY, SOURCE_KEYS
from cdcworker.connectors.config.converters import NOT_AVAILABLE
from cdcworker.connectors.config.definition import ConfigDef, ConfigKey, default_text
from cdcworker.connectors.registry.plugin import Plugin
from cdcworker.connectors.transform_chain.config import EXAMPLE
from cdcworker.connectors.transform_chain.plugin_parts import PARTS
from cdcworker.worker.config import config_providers
from cdcworker.worker.config.worker_properties import CLIENT_PREFIXES, WORKER_DEF
from cdcworker.worker.generators.markdown import bullets, code, codes, page, text

PROVIDER_KEYS: Final = (
    ConfigKey(
        config_providers.ENV_PATTERN_KEY,
        default=config_providers.ENV_PATTERN,
        doc="Variables that `${env:NAME}` in a connector's config may name.",
    ),
    ConfigKey(
        config_providers.FILE_PATHS_KEY,
        "LIST",
        default=config_providers.FILE_PATHS.split(","),
        doc="Folders whose files `${file:/path}` and `${file:/path:key}` may name.",
    ),
    ConfigKey(
        config_providers.DIR_PATHS_KEY,
        "LIST",
        default=config_providers.FILE_PATHS.split(","),
        doc="Folders whose files `${dir:/path:name}` may name, one value a file.",
    ),
)
BASICS: Final = (
    ConfigKey("name", required=True, doc="Name of the connector, unique in the cluster."),
    ConfigKey(
        "connector.class", "CLASS", required=True, doc="Which connector; its names stand at the top of this page."
    ),
    CONNECTION_KEY,
)
SINK_KEYS: Final = (
    ConfigKey("tasks.max", "INT", default=1, doc="The largest number of tasks that the topics are dealt out to."),
)
MEANINGS: Final[Mapping[str, str]] = {
    "database.connect.timeout.ms": "How long opening a connection may take.",
    "slot.creation.timeout.ms": "How long a new slot may wait for older transactions of the server.",
    "status.update.interval.ms": "The server hears at least this often how far the task has come.",
    "message.prefix.include.list": "Prefixes of logical messages that are handed on, as regular expressions.",
    "message.prefix.exclude.list": "Prefixes of logical messages that are left out.",
    "unavailable.value.placeholder": "What stands for a large value that the server did not send again.",
    "decimal.handling.mode": "How `numeric` is written: exact Avro decimal, text, or floating point.",
    "time.precision.mode": "How dates and times are written.",
    "binary.handling.mode": "How `bytea` is written.",
    "hstore.handling.mode": "How `hstore` is written.",
    "bit.varying.handling.mode": "How `bit varying` is written: Debezium's bits, which lose leading zeros, or its digits as text.",
    "composite.handling.mode": "How composite types are written: PostgreSQL's text, or a record of their attributes.",
    "unknown.type.handling.mode": "Columns of types without a form: as text, as opaque bytes, left out, or refused.",
    "out.of.range.handling.mode": "Values that readers of their type do not hold (infinite and far dates, 24:00, NaN): the nearest "
    "value or null, or exact in a form of their own.",
    "interval.handling.mode": "How `interval` is written: microseconds, or ISO 8601 text.",
    "money.fraction.digits": "Digits after the decimal point of `money`.",
    "snapshot.lock.timeout.ms": "How long a snapshot waits for a locked table before it reads others first.",
    "snapshot.include.collection.list": "Tables whose rows are read; the others are streamed only. Empty: all.",
    "delete.mode": "What becomes of a deleted row in the warehouse.",
}
"""Sentences for definitions that have no words of their own."""
OTHERS: Final = "Other keys"


def worker_page() -> str:
    keys = [*WORKER_DEF.keys.values(), *PROVIDER_KEYS]
    clients = sorted(f"{prefix}*" for prefix in CLIENT_PREFIXES)
    shown_elsewhere = {*clients, "config.providers", "config.providers.*"}
    ignored = [name for name in _accepted(WORKER_DEF, ()) if name not in shown_elsewhere]
    return page(
        "Worker properties",
        "The file that `cdcworker start --config FILE` reads has these keys. It is a properties file, or YAML. Any key may"
        " come from the environment instead: `CDC_GROUP_ID` is `group.id`. A double underscore stands for an underscore."
        " `CONNECT_` works as the prefix too; where both are set, `CDC_` wins.",
        f"Keys of the Kafka clients are passed on: {codes(clients)}. Behind the prefixes `producer.`, `consumer.` and `admin.` these are"
        " `security.*`, `sasl.*`, `ssl.*` and a few limits.",
        "Any other key is ignored with a warning that names the nearest known one.",
        f"There are {len(keys)} keys.",
        *map(_section, keys),
        "## Keys that are accepted without effect",
        "A file made for Kafka Connect can be used as it is: these keys of it are known and change nothing.",
        bullets(map(code, ignored)),
    )


def connector_page(plugin: Plugin) -> str:
    definition = plugin.load().config_def.of(EXAMPLE)
    keys = _of_connector(plugin, definition)
    refused = [key.name for key in definition.keys.values() if key.group == NOT_AVAILABLE and key.has_effect]
    default_only = [key.name for key in definition.keys.values() if not key.has_effect]
    return page(
        f"Connector {code(plugin.name)}",
        f"{plugin.title}. This is a {plugin.kind}. `connector.class` takes any of these names:",
        bullets(map(code, (plugin.name, *plugin.aliases))),
        f"There are {len(keys)} keys. Any key that is not on this page is an error that names the nearest known one.",
        "Any other `topic.creation.default.<topic setting>` is given to created topics as it is. Each group that"
        " `topic.creation.groups` names has the same keys, and `topic.creation.<group>.include` and `.exclude`"
        " ([Groups of created topics](../concepts/topics-and-records.md#groups-of-created-topics))."
        if plugin.kind == "source"
        else "",
        *_grouped(keys),
        *_listed(
            "Keys that are refused",
            "The effect of these keys cannot be had: a config that sets one is refused.",
            refused,
        ),
        *_listed(
            "Keys that take Debezium's default only",
            "Any other value is refused when a config is submitted. A connector that runs with one goes on.",
            default_only,
        ),
        *_listed(
            "Keys that are accepted without effect",
            "A config made for Kafka Connect or Debezium may hold these keys; they change nothing.",
            _accepted(definition, keys),
        ),
    )


def transforms_page() -> str:
    parts = [part for part in PARTS if part.kind in ("transformation", "predicate")]
    return page(
        "Transforms and predicates",
        "These are the classes that `transforms.<name>.type` and `predicates.<name>.type` of a source take, by their whole name or by what"
        " stands behind the last dot. `GET /connector-plugins/{class}/config` gives the keys of each as JSON."
        " [Change records with transforms](../how-to/transforms.md) shows them at work.",
        "Each transform also takes `predicate`, the name of a predicate that decides whether it is applied, and `negate`."
        " `ExtractNewRecordState` takes neither. Those whose names end in `$Key` are applied to the key of a record, those in `$Value` to"
        " its value.",
        *(
            section
            for part in parts
            for section in (f"## {code(part.name)}", text(part.doc), *map(_section, part.keys))
        ),
    )


def converters_page() -> str:
    parts = [part for part in PARTS if part.kind == "converter"]
    return page(
        "Converters",
        "These are the classes that `key.converter` and `value.converter` take, by their whole name or by what stands behind the last dot."
        " Their keys stand behind `key.converter.` or `value.converter.`. [Choose the record format](../how-to/record-format.md) shows them"
        " at work, and names the keys of an existing schema registry.",
        *(
            section
            for part in parts
            for section in (f"## {code(part.name)}", text(part.doc), *map(_section, part.keys))
        ),
    )


def _of_connector(plugin: Plugin, definition: ConfigDef) -> list[ConfigKey]:
    """Return the connector's own keys, behind those that every connector has and before those that its runner reads."""
    own = [key for key in definition.keys.values() if key.group != NOT_AVAILABLE]
    of_runner = SOURCE_KEYS if plugin.kind == "source" else SINK_KEYS
    first, last = ([key for key in keys if key.name not in definition.keys] for keys in (BASICS, of_runner))
    return [*first, *own, *last]


def _grouped(keys: Iterable[ConfigKey]) -> list[str]:
    """Return the sections under the headings of their groups, in the order in which the groups first appear."""
    groups: dict[str, list[ConfigKey]] = {"Common": []}
    for key in keys:
        groups.setdefault(key.group or "Common", []).append(key)
    return [part for name, members in groups.items() if members for part in (f"## {name}", *map(_section, members))]


def _listed(title: str, words: str, names: Sequence[str]) -> list[str]:
    return [f"## {title}", words, bullets(map(code, names))] if names else []


def _section(key: ConfigKey) -> str:
    default = default_text(key)
    facts = [_type(key), "**required**" if key.required else f"default {code(default)}" if default else "no default"]
    return f"#### {code(key.name)}\n\n{' · '.join(facts)}\n\n{text(meaning(key))}"


def meaning(key: ConfigKey) -> str:
    """Return what the key means; "" where nobody has written it down, which a test refuses."""
    return key.doc or key.note or MEANINGS.get(key.name, "")


def _accepted(definition: ConfigDef, described: Iterable[ConfigKey]) -> list[str]:
    """Return the names without effect, but for those that have a section of their own."""
    known = [key.name for key in described]
    return [
        f"{name}*" if name.endswith(".") else name
        for name in definition.accepted
        if not any(key == name or (name[-1] in ".*" and key.startswith(name.rstrip("*"))) for key in known)
    ]


def _type(key: ConfigKey) -> str:
    kind = "string" if key.type == "CLASS" else key.type.lower()
    if key.validator is None or key.type in ("LIST", "BOOLEAN", "PASSWORD"):
        return kind
    if key.type in ("STRING", "CLASS"):
        refusal = key.validator("\0") or ""
        choices = _choices(refusal)
        return f"one of {codes(choices.split(', '))}" if choices else kind
    low, high = (_bound(key.validator(limit)) for limit in (-math.inf, math.inf))
    return f"{kind}, {low} to {high}" if low and high else f"{kind}, from {low}" if low else kind


def _choices(refusal: str) -> str:
    found = re.search(r"(?:expects|must be) one of(?: \(case insensitive\))?:? (.*)", refusal)
    if found is None:
        return ""
    return found[1].lower() if "case insensitive" in refusal else found[1]


def _bound(refusal: str | None) -> str:
    return refusal.rpartition(" ")[2] if refusal else ""

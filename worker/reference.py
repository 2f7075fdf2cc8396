"""The README's reference of keys and error codes, made from the code that defines them; run as a module it writes it."""

from __future__ import annotations

import argparse
import importlib
import math
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cdcworker.connectors.common import SOURCE_KEYS
from cdcworker.connectors.config import ConfigDef, ConfigKey, default_text
from cdcworker.connectors.formats import EXAMPLE, NOT_AVAILABLE
from cdcworker.connectors.registry import Plugin, plugins
from cdcworker.schemas.errors import CODES
from cdcworker.worker import references
from cdcworker.worker.config import CLIENT_PREFIXES, WORKER_DEF
from cdcworker.worker.rest.metric_table import ALL as METRICS
from cdcworker.worker.runbook import kept

BEGIN, END = "<!-- reference:begin -->", "<!-- reference:end -->"
ROOMS = ("schemas", "coordinator", "connectors", "worker")
PROVIDER_KEYS = (
    ConfigKey(
        references.ENV_PATTERN_KEY,
        default=references.ENV_PATTERN,
        doc="Variables that `${env:NAME}` in a connector's config may name.",
    ),
    ConfigKey(
        references.FILE_PATHS_KEY,
        "LIST",
        default=references.FILE_PATHS.split(","),
        doc="Folders whose files `${file:/path}` and `${file:/path:key}` may name.",
    ),
    ConfigKey(
        references.DIR_PATHS_KEY,
        "LIST",
        default=references.FILE_PATHS.split(","),
        doc="Folders whose files `${dir:/path:name}` may name, one value a file.",
    ),
)
BASICS = (
    ConfigKey("name", required=True, doc="Name of the connector, unique in the cluster."),
    ConfigKey("connector.class", "CLASS", required=True, doc="Which connector; its names are below."),
)
SINK_KEYS = (ConfigKey("tasks.max", "INT", default=1, doc="Most tasks that the topics are dealt out to."),)
MEANINGS = {
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
    "interval.handling.mode": "How `interval` is written: microseconds, or ISO 8601 text.",
    "money.fraction.digits": "Digits after the decimal point of `money`.",
    "snapshot.lock.timeout.ms": "How long a snapshot waits for a locked table before it reads others first.",
    "snapshot.include.collection.list": "Tables whose rows are read; the others are streamed only. Empty: all.",
    "warehouse.port": "Port of the target.",
    "delete.mode": "A deleted row is deleted in the warehouse.",
}
"""For definitions that have no words of their own."""


def reference() -> str:
    """The text between the markers."""
    import_all()
    parts = [_worker(), *map(_connector, plugins()), _metrics(), _codes()]
    return "\n\n".join(parts)


def import_all() -> None:
    """Codes are declared where they are raised: only when every module is loaded are all of them known."""
    for room in ROOMS:
        package = importlib.import_module(f"cdcworker.{room}")
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.rpartition(".")[2].startswith("_"):
                importlib.import_module(module.name)


def _worker() -> str:
    keys = [*WORKER_DEF.keys.values(), *PROVIDER_KEYS]
    clients = {f"`{prefix}*`" for prefix in CLIENT_PREFIXES}
    unused = [name for name in _accepted(WORKER_DEF, ()) if name not in clients]
    unused = [name for name in unused if name not in ("`config.providers`", "`config.providers.*`")]
    notes = [
        f"Passed on to the Kafka clients: {', '.join(sorted(clients))}, also behind `producer.`, `consumer.` and"
        " `admin.` for `security.*`, `sasl.*`, `ssl.*` and a few limits.",
        f"Accepted without effect: {', '.join(unused)}.",
        "Any other key is ignored with a warning that names the nearest known one.",
    ]
    return _folded(f"Worker properties ({len(keys)})", _keys(keys), *notes)


def _connector(plugin: Plugin) -> str:
    whole: ConfigDef = plugin.load().config_def
    definition = whole.of(EXAMPLE)
    own = [key for key in definition.keys.values() if key.group != NOT_AVAILABLE]
    refused = [key.name for key in definition.keys.values() if key.group == NOT_AVAILABLE]
    added = [key for key in (*BASICS, *_of_runner(plugin)) if key.name not in definition.keys]
    keys = [*added[: len(BASICS)], *own, *added[len(BASICS) :]]
    names = ", ".join(f"`{name}`" for name in (plugin.name, *plugin.aliases))
    notes = [f"`connector.class`: {names}."]
    if plugin.kind == "source":
        notes.append("Any other `topic.creation.default.<topic setting>` is given to created topics as it is.")
    if refused:
        notes.append(f"Refused when set: {', '.join(f'`{name}`' for name in refused)}.")
    notes.append(f"Accepted without effect: {', '.join(_accepted(definition, keys))}.")
    notes.append("Any other key is an error that names the nearest known one.")
    return _folded(f"Connector `{plugin.name}`: {plugin.title} ({len(keys)} keys)", _keys(keys), *notes)


def _of_runner(plugin: Plugin) -> tuple[ConfigKey, ...]:
    """Keys that the worker reads from a connector's config, whatever the connector."""
    return SOURCE_KEYS if plugin.kind == "source" else SINK_KEYS


def _accepted(definition: ConfigDef, described: Iterable[ConfigKey]) -> list[str]:
    """Names without effect; those that have a row of their own are left out."""
    known = [key.name for key in described]
    names = [
        name
        for name in definition.accepted
        if not any(key == name or (name[-1] in ".*" and key.startswith(name.rstrip("*"))) for key in known)
    ]
    return [f"`{name}*`" if name.endswith(".") else f"`{name}`" for name in names]


def _keys(keys: Sequence[ConfigKey]) -> str:
    return _table(
        ("key", "type", "default", "meaning"),
        ((f"`{key.name}`", _type(key), _default(key), _meaning(key)) for key in keys),
    )


def _type(key: ConfigKey) -> str:
    kind = "string" if key.type == "CLASS" else key.type.lower()
    if key.validator is None or key.type in ("LIST", "BOOLEAN", "PASSWORD"):
        return kind
    if key.type in ("STRING", "CLASS"):
        refusal = key.validator("\0") or ""
        choices = refusal.partition("expects one of ")[2]
        return ", ".join(f"`{choice}`" for choice in choices.split(", ")) if choices else kind
    low, high = (_bound(key.validator(limit)) for limit in (-math.inf, math.inf))
    return f"{kind}, {low} to {high}" if low and high else f"{kind}, from {low}" if low else kind


def _bound(refusal: str | None) -> str:
    return refusal.rpartition(" ")[2] if refusal else ""


def _default(key: ConfigKey) -> str:
    text = default_text(key)
    return "**required**" if key.required else f"`{text}`" if text else "–"


def _meaning(key: ConfigKey) -> str:
    return key.doc or key.note or MEANINGS.get(key.name, "")


def _metrics() -> str:
    rows = ((f"`{metric.shown}`", metric.kind, ", ".join(metric.labels), metric.help) for metric in METRICS)
    return _folded(f"Metrics ({len(METRICS)})", _table(("metric", "kind", "labels", "meaning"), rows))


def _codes() -> str:
    codes = sorted(CODES.values(), key=lambda code: code.name)
    rows = ((f"`{code.name}`", code.kind, code.title, kept(code), code.hint) for code in codes)
    head = ("code", "kind", "meaning", "what was kept safe", "what to do")
    return _folded(f"Error codes, the runbook ({len(codes)})", _table(head, rows))


def _folded(title: str, *parts: str) -> str:
    """GitHub renders Markdown inside only after an empty line; a summary is HTML."""
    pieces = title.split("`")
    html = "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))
    return "\n\n".join((f"<details>\n<summary>{html}</summary>", *parts, "</details>"))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(_lines(head, rows))


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"


def _cell(text: str) -> str:
    """Outside of code an angle bracket would begin an element; a bar ends the cell even inside."""
    pieces = text.replace("\n", " ").replace("|", r"\|").split("`")
    return "`".join(piece if number % 2 else piece.replace("<", "&lt;") for number, piece in enumerate(pieces))


def replaced(text: str) -> str:
    """The README with the part between the markers made anew."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the markers {BEGIN} and {END} are missing")
    return f"{before}{BEGIN}\n{reference()}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the reference of keys and error codes into the README.")
    parser.add_argument("--check", action="store_true", help="Change nothing; exit code 1 if it is not up to date.")
    parser.add_argument("file", nargs="?", default="README.md", type=Path)
    options = parser.parse_args(arguments)
    present = options.file.read_text(encoding="utf-8")
    wanted = replaced(present)
    if options.check and wanted != present:
        old, new = set(present.splitlines()), set(wanted.splitlines())
        print("the reference is not up to date: run `make reference`", file=sys.stderr)
        print("\n".join([*(f"- {line}" for line in old - new), *(f"+ {line}" for line in new - old)]), file=sys.stderr)
        return 1
    if not options.check:
        options.file.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Schema compatibility: whether data written with one Avro schema can be read with another, by Avro's resolution
rules."""

from __future__ import annotations

from typing import Any, Final

from cdcworker.schemas.avro import PRIMITIVES, canonical_tree
from cdcworker.schemas.change import Avro

_PROMOTIONS: Final = {
    "int": frozenset(("long", "float", "double")),
    "long": frozenset(("float", "double")),
    "float": frozenset(("double",)),
    "string": frozenset(("bytes",)),
    "bytes": frozenset(("string",)),
}


def incompatibilities(level: str, new: Avro, earlier: list[Avro]) -> list[str]:
    """Returns the problems of schema `new` after the `earlier` ones (oldest first) at this compatibility level."""
    against = earlier if level.endswith("_TRANSITIVE") else earlier[-1:]
    messages: list[str] = []
    for old in against:
        if level.startswith(("BACKWARD", "FULL")):
            messages += [f"the new schema cannot read the old: {place}" for place in unreadable(new, old)]
        if level.startswith(("FORWARD", "FULL")):
            messages += [f"the old schema cannot read the new: {place}" for place in unreadable(old, new)]
    return messages


def unreadable(reader: Avro, writer: Avro) -> list[str]:
    """Returns the places where schema `reader` cannot read data of schema `writer`."""
    return _Match(canonical_tree(reader), canonical_tree(writer)).run()


class _Match:
    def __init__(self, reader: Any, writer: Any) -> None:
        self.reader, self.writer = reader, writer
        self.reader_names: dict[str, Any] = {}
        self.writer_names: dict[str, Any] = {}
        _collect(reader, self.reader_names)
        _collect(writer, self.writer_names)
        self.seen: set[tuple[str, str]] = set()

    def run(self) -> list[str]:
        return self.match(self.reader, self.writer, "/")

    def match(self, reader: Any, writer: Any, path: str) -> list[str]:
        reader, writer = self._resolve(reader, self.reader_names), self._resolve(writer, self.writer_names)
        if isinstance(writer, list):
            return [problem for branch in writer for problem in self.match(reader, branch, path)]
        if isinstance(reader, list):
            if any(not self.match(branch, writer, path) for branch in reader):
                return []
            return [f"{path}: no branch reads {_kind(writer)}"]
        kinds = _kind(reader), _kind(writer)
        if kinds[0] != kinds[1]:
            readable = kinds[0] in _PROMOTIONS.get(kinds[1], ())
            return [] if readable else [f"{path}: {kinds[0]} does not read {kinds[1]}"]
        return self._same_kind(kinds[0], reader, writer, path)

    def _same_kind(self, kind: str, reader: Any, writer: Any, path: str) -> list[str]:
        if kind == "array":
            return self.match(reader["items"], writer["items"], f"{path}items/")
        if kind == "map":
            return self.match(reader["values"], writer["values"], f"{path}values/")
        if kind == "record":
            return self._record(reader, writer, path)
        if kind == "fixed":
            same = reader["size"] == writer["size"] and _same_name(reader, writer)
            return [] if same else [f"{path}: the fixed types differ"]
        if kind == "enum":
            missing = set(writer["symbols"]) - set(reader["symbols"])
            return [] if not missing or "default" in reader else [f"{path}: the enum lacks symbols"]
        return self._logical(reader, writer, path)

    @staticmethod
    def _logical(reader: Any, writer: Any, path: str) -> list[str]:
        names = [node if isinstance(node, dict) else {} for node in (reader, writer)]
        decimals = [node for node in names if node.get("logicalType") == "decimal"]
        if len(decimals) == 2 and decimals[0].get("scale", 0) != decimals[1].get("scale", 0):
            return [f"{path}: the scales of the decimals differ"]
        return []

    def _record(self, reader: Any, writer: Any, path: str) -> list[str]:
        pair = reader["name"], writer["name"]
        if pair in self.seen:
            return []
        self.seen.add(pair)
        if not _same_name(reader, writer):
            return [f"{path}: the names of the records differ"]
        written = {field["name"]: field for field in writer["fields"]}
        problems: list[str] = []
        for field in reader["fields"]:
            names = [field["name"], *field.get("aliases", ())]
            source = next((written[name] for name in names if name in written), None)
            place = f"{path}{field['name']}/"
            if source is not None:
                problems += self.match(field["type"], source["type"], place)
            elif "default" not in field:
                problems.append(f"{place}: a field without a default is not in the other schema")
        if problems:
            self.seen.discard(pair)  # only a match is remembered
        return problems

    @staticmethod
    def _resolve(node: Any, names: dict[str, Any]) -> Any:
        return names[node] if isinstance(node, str) and node not in PRIMITIVES else node


def _kind(node: Any) -> str:
    return str(node["type"]) if isinstance(node, dict) else str(node)


def _same_name(reader: Any, writer: Any) -> bool:
    """Tells whether two names match by their last part, as Avro's implementations compare them, or by an alias."""
    last = writer["name"].rpartition(".")[2]
    return last in {name.rpartition(".")[2] for name in (reader["name"], *reader.get("aliases", ()))}


def _collect(node: Any, names: dict[str, Any]) -> None:
    if isinstance(node, list):
        for branch in node:
            _collect(branch, names)
    elif isinstance(node, dict):
        if "name" in node:
            names[node["name"]] = node
        for inner in (node.get("items"), node.get("values"), *(field["type"] for field in node.get("fields", ()))):
            if inner is not None:
                _collect(inner, names)

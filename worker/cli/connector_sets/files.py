"""Files of connectors: JSON or YAML, one connector, a list of them, or several YAML documents a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml
from cdcworker.connectors.config import secret_names

SUFFIXES = (".json", ".yaml", ".yml")
MEMBERS = ("name", "config", "labels", "initial_state")
CONNECTION_MEMBERS = ("connection", "config")
"""The members of an object that holds a connection."""
MANY = "connectors"
"""The member of an object that holds several connectors."""


@dataclass(frozen=True)
class WantedConnector:
    """A connector as a file wants it. Labels of None: whichever it has."""

    name: str
    config: Mapping[str, Any]
    source: str
    """The file, for messages."""
    labels: Mapping[str, str] | None = None
    initial_state: str | None = None
    others: Mapping[str, str] = field(default_factory=dict)
    """Labels that it gets beside those it has."""

    def body(self) -> dict[str, Any]:
        """Returns the body of the request that creates it."""
        body: dict[str, Any] = {"name": self.name, "config": dict(self.config)}
        if self.labels is not None or self.others:
            body["labels"] = {**(self.labels or {}), **self.others}
        if self.initial_state:
            body["initial_state"] = self.initial_state.upper()
        return body


@dataclass(frozen=True)
class WantedConnection:
    """A connection as a file wants it."""

    name: str
    config: Mapping[str, Any] = field(repr=False)
    source: str = ""
    """The file, for messages."""


Wanted = TypeVar("Wanted", WantedConnector, WantedConnection)


@dataclass(frozen=True)
class WantedSet:
    """What a folder wants, each by name."""

    connectors: Sequence[WantedConnector] = ()
    connections: Sequence[WantedConnection] = ()


def read_set(place: Path, others: Mapping[str, str]) -> WantedSet:
    """Returns what a file holds, or all files in a folder and below it, by name; all connectors get the labels `others`.

    Raises:
        click.UsageError: A file cannot be read, holds anything else, or two of them name the same connector.
    """
    connectors: dict[str, WantedConnector] = {}
    connections: dict[str, WantedConnection] = {}
    for path in files(place):
        for at, content in documents(path):
            if is_connection(content):
                _keep(connections, wanted_connection(content, f"{path}{at}"))
            else:
                _keep(connectors, wanted(content, f"{path}{at}", others))
    return WantedSet(
        [connectors[name] for name in sorted(connectors)], [connections[name] for name in sorted(connections)]
    )


def _keep(found: dict[str, Wanted], one: Wanted) -> None:
    if one.name in found:
        raise click.UsageError(f"{one.source}: {one.name} is in {found[one.name].source} as well")
    found[one.name] = one


def files(place: Path) -> list[Path]:
    """Returns the file itself, or the files of a folder; hidden ones are left out. UsageError where there are none."""
    if not place.is_dir():
        return [place]
    paths = (path for path in place.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    found = sorted(path for path in paths if not any(part.startswith(".") for part in path.relative_to(place).parts))
    if not found:
        raise click.UsageError(f"{place}: no file ends in {', '.join(SUFFIXES)}")
    return found


def documents(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields (place in the file, content) for each connector of a file."""
    try:
        text = path.read_text(encoding="utf-8")
        read = [_json(text)] if path.suffix == ".json" else list(yaml.load_all(text, _YamlLoader))
        # Half of a surrogate pair, which an escape can make, goes into no request.
        json.dumps(read, ensure_ascii=False).encode()
    except _DoubledKeyError as error:
        raise click.UsageError(f"{path}: {error}") from None
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise click.UsageError(f"{path}: {_place_of(error)}") from None
    several = len(read) > 1
    for number, content in enumerate(read):
        at = f" document {number + 1}" if several else ""
        if isinstance(content, Mapping) and isinstance(content.get(MANY), Sequence) and len(content) == 1:
            content = content[MANY]
        if isinstance(content, list):
            yield from ((f"{at} number {index + 1}", item) for index, item in enumerate(content))
        elif content not in (None, ""):
            yield at, content


class _DoubledKeyError(Exception):
    """A mapping has a key twice: a parser would take the last one and say nothing."""

    def __init__(self, key: str, place: str = "") -> None:
        super().__init__(f"{place}the key {secret_names.name(key)} stands twice in one object")


class _YamlLoader(yaml.BaseLoader):
    """Takes everything as text, whatever it looks like: YAML would take `on` for true and 010 for eight."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    at = key.start_mark
                    raise _DoubledKeyError(key.value, f"line {at.line + 1}, column {at.column + 1}: ")
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _json(text: str) -> Any:
    """Returns the content of a JSON text. A number with a fraction stays as it is written, as a worker reads it."""
    return json.loads(text, object_pairs_hook=_with_each_key_once, parse_float=str, parse_constant=_refuse_constant)


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DoubledKeyError(key)
        found[key] = value
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _place_of(error: Exception) -> str:
    """Returns what is wrong and where, without the file's text: it may hold a secret."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"line {mark.line + 1}, column {mark.column + 1}: this is no YAML"
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    return "neither JSON nor YAML in UTF-8"


def wanted(content: Any, place: str, others: Mapping[str, str]) -> WantedConnector:
    """Returns the connector of one document: `{"name", "config", …}` as in `POST /connectors`, or its config alone."""
    if not isinstance(content, Mapping):
        raise click.UsageError(f"{place}: expected an object with `name` and `config`")
    whole = isinstance(content.get("config"), Mapping)
    config = dict(content["config"] if whole else content)
    name = str((content.get("name") if whole else None) or config.get("name") or "").strip()
    if not name:
        raise click.UsageError(f"{place}: `name` is missing")
    if str(config.setdefault("name", name)) != name:
        raise click.UsageError(f"{place}: `name` is {name}, and `config` says another one")
    if not whole:
        return WantedConnector(name, config, place, others=others)
    if unknown := sorted(set(content) - set(MEMBERS)):
        raise click.UsageError(f"{place}: unknown member {unknown[0]!r}: {', '.join(MEMBERS)} exist")
    return WantedConnector(name, config, place, _labels(content, place), _state(content, place), others)


def is_connection(content: Any) -> bool:
    """Returns whether a document holds a connection: a flat config of a connector that names one has no object `config`."""
    return (
        isinstance(content, Mapping)
        and CONNECTION_MEMBERS[0] in content
        and "name" not in content
        and (isinstance(content.get("config"), Mapping))
    )


def wanted_connection(content: Mapping[str, Any], place: str) -> WantedConnection:
    """Returns the connection of one document: `{"connection", "config"}`."""
    if unknown := sorted(set(content) - set(CONNECTION_MEMBERS)):
        raise click.UsageError(f"{place}: unknown member {unknown[0]!r}: {', '.join(CONNECTION_MEMBERS)} exist")
    name = str(content["connection"] or "").strip()
    if not name:
        raise click.UsageError(f"{place}: `connection` is empty")
    return WantedConnection(name, dict(content["config"]), place)


def _labels(content: Mapping[str, Any], place: str) -> dict[str, str] | None:
    labels = content.get("labels")
    if labels is None:
        return None
    if not isinstance(labels, Mapping) or not all(isinstance(value, str) for value in labels.values()):
        raise click.UsageError(f"{place}: `labels` has to be an object of texts")
    return {str(key): value for key, value in labels.items()}


def _state(content: Mapping[str, Any], place: str) -> str | None:
    state = content.get("initial_state")
    if state is None or str(state).upper() in ("RUNNING", "PAUSED", "STOPPED"):
        return None if state is None else str(state)
    raise click.UsageError(f"{place}: `initial_state` has to be running, paused or stopped")


def write_connection(folder: Path, body: Mapping[str, Any]) -> tuple[Path, bool]:
    """Writes a connection to `connections/NAME.json`; returns its path, and whether the file has another content now."""
    below = folder / "connections"
    below.mkdir(exist_ok=True)
    return _write(below / f"{_file_name(str(body['connection']))}.json", body)


def write_connector(folder: Path, body: Mapping[str, Any]) -> tuple[Path, bool]:
    """Writes a connector to `NAME.json`; returns its path, and whether the file has another content now."""
    return _write(folder / f"{_file_name(str(body['name']))}.json", body)


def _write(path: Path, body: Mapping[str, Any]) -> tuple[Path, bool]:
    text = json.dumps(body, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return path, False
    path.write_text(text, encoding="utf-8")
    return path, True


def _file_name(name: str) -> str:
    """Returns the name with every character encoded that a file system or `files` would take for something else."""
    safe = "".join(one if one.isalnum() or one in "-_." else f"%{ord(one):02X}" for one in name)
    return safe if not safe.startswith(".") else f"%2E{safe[1:]}"

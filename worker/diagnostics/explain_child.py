"""The child that follows one row: a JSON question on stdin, the stages that it found, and did not find, on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

from cdcworker.connectors.api.sink import KeepsOffsets, LedgerAccess, Traces
from cdcworker.connectors.api.source import ShowsPlaces, ShowsPositions
from cdcworker.connectors.config.definition import MASK
from cdcworker.coordinator.kafka.clients import settings
from cdcworker.coordinator.log.offset_records import offsets_partition, parse_offset_key, parse_offset_value
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.schemas.patterns import matches
from cdcworker.worker.children.answer import read_question
from cdcworker.worker.config.file_roots import file_roots
from cdcworker.worker.diagnostics.explain import places_of, positions_of
from cdcworker.worker.diagnostics.row_search import FoundChange, RowSearch
from cdcworker.worker.logs.redaction import clean, clean_all
from cdcworker.worker.task.sink_runner import finder
from cdcworker.worker.validation.connector_of_config import connector_of

NICENESS: Final = 10
SHOWN_MAX: Final = 5
Json = dict[str, Any]


def main() -> int:
    with read_question(NICENESS) as (question, out):
        json.dump(answer(question), out, default=str)
    return 0


def answer(question: JsonObject) -> Json:
    try:
        with RowSearch(question) as search:
            return explained(question, search)
    except CdcError as error:
        return {"stages": [], "error": clean_all(error.to_dict())}
    except Exception as error:  # noqa: BLE001 - the edge of the process; the text may hold values, the type does not
        return {"stages": [], "error": CdcError(INTERNAL, f"{type(error).__name__} while following a row").to_dict()}


def explained(question: JsonObject, search: RowSearch) -> Json:
    found = search.find()
    if found is None:
        return {"stages": [_missing("topic", _where(search))], "searched": search.searched, "others": []}
    change = found.change
    source_class = (question["source"] or {}).get("class", "")
    shows, tells = positions_of(source_class), places_of(source_class)
    stages = [_commit(change, shows, tells), _topic(change), *_written(question, search, found, shows)]
    stages += [_sink(question, sink, found) for sink in question["sinks"] if _reads(sink["config"], found.topic)]
    if not any(stage["stage"] == "sink" for stage in stages):
        stages.append(_missing("sink", "no sink of this cluster reads the topic"))
    others = [_brief(one) for one in found.others[:SHOWN_MAX]]
    return {
        "stages": stages, "op": change["op"], "key": change["key"], "searched": search.searched, "others": others,
        "newer": found.newer,
    }  # fmt: skip


def _stage(stage: str, at_ms: int | None, text: str, **facts: Any) -> Json:
    return {"stage": stage, "found": True, "at_ms": at_ms, "text": text, **facts}


def _missing(stage: str, text: str, **facts: Any) -> Json:
    return {"stage": stage, "found": False, "at_ms": None, "text": text, **facts}


def _where(search: RowSearch) -> str:
    seen = search.searched
    if not seen["partitions"]:
        return "no topic of the connector belongs to this table"
    began = (
        "from their beginning" if seen["complete"] else f"the newest {seen['records']:,} alone: older ones may hold it"
    )
    return f"no such change among {seen['records']:,} records of {seen['partitions']} partitions, read {began}"


def _brief(change: Mapping[str, Any]) -> Json:
    return {name: change[name] for name in ("op", "topic", "partition", "offset", "written_ms")} | {
        "lsn": change.get("source", {}).get("lsn")
    }


def _commit(change: Mapping[str, Any], shows: type[ShowsPositions], tells: type[ShowsPlaces] | None) -> Json:
    source = change.get("source")
    if not source or "commit_lsn" not in source:
        return _missing("commit", "the record has no source block: its form leaves it out")
    commit, word = source["commit_lsn"], shows.position_name()
    at, committed = shows.position_text(source.get("lsn") or commit), shows.position_text(commit)
    place = tells.place_text(source) if tells is not None else ""
    text = f"{change['op']} at {place or f'{word} {at}'}, committed {'as' if place else 'at'} {committed}"
    if str(source.get("snapshot", "false")) not in ("false", "None"):
        return _stage("commit", source.get("ts_ms"), f"read by a snapshot at {place or f'{word} {at}'}", **source)
    if source.get("txId") is not None:
        text += f", transaction {source['txId']}, change {source.get('tx_index', 0)}"
    return _stage("commit", source.get("ts_ms"), text, **source)


def _topic(change: Mapping[str, Any]) -> Json:
    place = {name: change[name] for name in ("topic", "partition", "offset")}
    text = f"{place['topic']}/{place['partition']}@{place['offset']}"
    return _stage("topic", change["written_ms"], text, **place)


def _written(question: JsonObject, search: RowSearch, found: FoundChange, shows: type[ShowsPositions]) -> list[Json]:
    """Looks for the watermark and the stored position of the change's Kafka transaction; the watermark names the task."""
    source, commit = question["source"], found.change.get("source", {}).get("commit_lsn")
    if source is None:
        return [_missing("task", "no single source of this cluster has the topic's prefix")]
    if commit is None or not source["prefix"]:
        return [_missing("task", "the record does not tell its position")]
    mark = search.first(
        f"{source['prefix']}.watermark", 0, found.written_ms, lambda record: _covers(record, source["name"], commit)
    )
    task = int(mark.key["task"]) if mark else 0 if len(source["runs"]) == 1 else None
    stages = [_task(source, task)]
    if mark:
        text = f"Kafka transaction committed, with the watermark {shows.position_text(int(mark.value['commit_lsn']))}"
        stages.append(_stage("transaction", mark.written_ms, text, watermark=mark.value, offset=mark.offset))
    else:
        stages.append(_missing("transaction", "the record is committed; its watermark is no longer, or not yet, there"))
    return [*stages, _position(question, search, found, task, shows)]


def _task(source: Mapping[str, Any], task: int | None) -> Json:
    if task is None:
        return _missing("task", f"one of the {len(source['runs'])} tasks of {source['name']}: nothing says which")
    now = next((run for run in source["runs"] if run["task"] == task), {"worker": None, "epoch": None})
    text = f"{source['name']}-{task}" + (f", now on {now['worker']}" if now["worker"] else "")
    return _stage("task", None, text, **{**now, "task": task})


def _covers(record: Any, connector: str, commit: int) -> bool:
    key, value = record.key, record.value
    fits = isinstance(key, dict) and isinstance(value, dict) and key.get("connector") == connector
    return fits and int(value.get("commit_lsn") or -1) >= commit


def _position(
    question: JsonObject, search: RowSearch, found: FoundChange, task: int | None, shows: type[ShowsPositions]
) -> Json:
    tells = places_of(question["source"].get("class", ""))
    logs, name, commit = question["logs"], question["source"]["name"], found.change["source"]["commit_lsn"]
    if task is None:
        return _missing("position", "the task is not known")

    def holds(record: Any) -> bool:
        try:
            whose, stored = parse_offset_key(json.dumps(record.key)), parse_offset_value(record.value or {})
        except CdcError:
            return False
        return bool(whose.connector == name and _stored(stored.position, tells)[0] >= commit)

    number = offsets_partition(name, task, search.partitions(logs["offsets"]))
    record = search.first(logs["offsets"], number, found.written_ms, holds)
    if record is None:
        return _missing("position", "no stored position is past it: the position is not written yet, or does not tell")
    at, place = _stored(record.value["position"], tells)
    text = f"the task's position is past it: {place or shows.position_text(at)}"
    if at > commit:
        text += " (a later one: positions in between are written over)"
    return _stage("position", record.written_ms, text, commit_lsn=at, offset=record.offset, partition=number)


def _stored(position: Mapping[str, Any], tells: type[ShowsPlaces] | None) -> tuple[int, str]:
    """Returns the commit up to which a stored position has everything, -1 where it does not tell, and its place in the log, where
    that is shown in another form."""
    if tells is None:
        return int(position.get("commit_lsn") or -1), ""
    try:
        return tells.stored_place(position)
    except ValueError:
        return -1, ""


def _reads(config: Mapping[str, str], topic: str) -> bool:
    listed = [name.strip() for name in config.get("topics", "").split(",") if name.strip()]
    if listed:
        return topic in listed
    try:
        return matches(config.get("topics.regex", ""), topic)
    except CdcError:
        return False


def _sink(question: JsonObject, sink: Mapping[str, Any], found: FoundChange) -> Json:
    """Returns what the target says. A sink without `Traces` is asked for its ledger, which says less."""
    secrets: list[str] = []
    facts = {"sink": sink["name"]}
    try:
        connector = connector_of(sink["config"], question["providers"], secrets)
        kafka = settings(question["kafka"], "consumer")
        place = LedgerAccess(sink["name"], (0, 0), file_roots(question["providers"]), finder(connector), kafka)
        if isinstance(connector, Traces):
            return _traced(facts, connector.trace(place, found.change), found)
        if not isinstance(connector, KeepsOffsets):
            return _missing("sink", f"{sink['name']} does not show its offsets", **facts)
        return _traced(facts, {"next_offset": connector.offsets(place).get((found.topic, found.partition))}, found)
    except CdcError as error:
        text = f"{sink['name']} could not be asked: [{error.code}] {error.message}"
    except Exception as error:  # noqa: BLE001 - a connector's own code; its text may hold values
        text = f"{sink['name']} could not be asked: {type(error).__name__}"
    text = clean(text)
    for secret in secrets:
        text = text.replace(secret, MASK)
    return _missing("sink", text, **facts)


def _traced(facts: Json, told: Mapping[str, Any], found: FoundChange) -> Json:
    """`told`: next_offset, and where the target knows it batch, at_ms, dead, row (`this`, `newer`, `older`, `absent`)."""
    name, next_offset = facts["sink"], told.get("next_offset")
    facts = {**facts, **{key: value for key, value in told.items() if key != "at_ms"}}
    if told.get("dead"):
        return _stage("sink", told.get("dead_ms"), f"{name} set it aside as a dead letter: {told['dead']}", **facts)
    if next_offset is None:
        return _missing("sink", f"{name} has applied nothing of this partition yet", **facts)
    if next_offset <= found.offset:
        behind = found.offset - next_offset + 1
        return _missing("sink", f"{name} has not come so far: {behind:,} offsets behind it", **facts)
    text = f"{name} has applied it"
    if told.get("batch") is not None:
        is_last = told.get("applied") == told.get("position")
        text += (
            f", in batch {told['batch']}"
            if is_last
            else f", in batch {told['batch']} or before: the ledger keeps the last"
        )
    return _stage("sink", told.get("at_ms"), text + ROWS.get(str(told.get("row")), ""), **facts)


ROWS: Final = {
    "this": "; the row in the warehouse is this change's",
    "newer": "; the row in the warehouse is of a later change",
    "older": "; the row in the warehouse is of an earlier change, which is wrong unless somebody changed it",
    "absent": "; the warehouse has no such row now",
}


if __name__ == "__main__":
    sys.exit(main())

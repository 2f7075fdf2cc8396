"""Records as both write them, in Connect's JSON with schemas, in a form that can be compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence, Set
from typing import Any

from tests.genuine.comparison import of_value

Record = dict[str, Any]
"""Key, value and headers; of key and value the schema and the payload."""
TIMES = ("ts_ms", "ts_us", "ts_ns")


def comparable(message: Any, prefix: str) -> Record:
    """A record without the prefix of its topic, by which the two are told apart, and without the time at which it was made."""
    headers = {name: (value or b"").decode().replace(prefix, "p") for name, value in message.headers() or ()}
    return {"key": part(message.key(), prefix), "value": part(message.value(), prefix), "headers": headers}


def part(data: bytes | None, prefix: str) -> Any:
    """None for no value at all."""
    if data is None:
        return None
    read = json.loads(data.decode().replace(prefix, "p"))
    return {"schema": schema_of(read["schema"]), "payload": timeless(read["payload"])}


def timeless(payload: Any) -> Any:
    """Without times of the connector's own: of the record, and of the reading of a snapshot's row. The collections of a transaction
    come in any order."""
    found = {name: value for name, value in payload.items() if name not in TIMES}
    if found.get("data_collections"):
        found["data_collections"] = sorted(found["data_collections"], key=lambda one: str(one["data_collection"]))
    source = found.get("source")
    if source and source["snapshot"] != "false":
        found["source"] = {name: value for name, value in source.items() if name not in TIMES}
    return found


def schema_of(schema: Any) -> Any:
    """Fields by their names instead of by their order; the order beside them."""
    if not isinstance(schema, dict):
        return schema
    found = {name: value for name, value in schema.items() if name not in ("fields", "field", "items")}
    if "items" in schema:
        found["items"] = schema_of(schema["items"])
    if "fields" in schema:
        found["fields"] = {field["field"]: schema_of(field) for field in schema["fields"]}
        found["order"] = ",".join(field["field"] for field in schema["fields"])
    return found


def payload(record: Record) -> Any:
    return (record["value"] or {}).get("payload") or {}


def with_counterparts(records: Sequence[Record]) -> list[Record]:
    """Debezium's records without those that ours does not write: of tables that stand there at the start, and a tombstone without
    a key."""
    kept = []
    for record in records:
        value = payload(record)
        is_of_start = "ddl" in value and value["source"]["snapshot"] != "false"
        is_bare = record["key"] is None and record["value"] is None
        if not (is_of_start or is_bare):
            kept.append(record)
    return kept


def ended(theirs: Sequence[Record]) -> set[str]:
    """The transactions that Debezium ends. It begins one for each statement about a table, too."""
    return {payload(record)["id"] for record in theirs if payload(record).get("status") == "END"}


def of_transactions(records: Sequence[Record], wanted: Set[str]) -> list[Record]:
    """The records but for those of the beginning and the end of other transactions."""
    return [record for record in records if "status" not in payload(record) or payload(record)["id"] in wanted]


def differences(theirs: list[Record], ours: list[Record]) -> Iterator[str]:
    """What is other in ours, record by record, by the record's number or its statement; then how many records there are."""
    for number, (wanted, found) in enumerate(zip(theirs, ours, strict=False)):
        for line in of_value(wanted, found, ""):
            yield f"{payload(found).get('ddl', number)} {line}"
    if len(theirs) != len(ours):
        yield f"{len(ours)} records, not {len(theirs)}"

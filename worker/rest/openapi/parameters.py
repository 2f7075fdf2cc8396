"""The query parameters of the REST API as OpenAPI describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdcworker.worker.rest.read_consistency import NUMBERS_MAX

Json = dict[str, Any]
TEXT: Json = {"type": "string"}
FLAG: Json = {"type": "string", "examples": ["true", "false"]}

PARAMETERS: Mapping[str, Json] = {
    "expand": {
        "description": "Show status, info or both of each connector; other values are ignored.",
        "schema": {"type": "array", "items": {"type": "string", "examples": ["status", "info"]}},
    },
    "validate": {"description": "Anything but true leaves live checks out.", "schema": FLAG},
    "details": {
        "description": "true: with the members that Kafka Connect's answers, errors among them, do not have; strict clients "
        "refuse them.",
        "schema": FLAG,
    },
    "open": {"description": "true: only those that are not over.", "schema": FLAG},
    "dry_run": {
        "description": "true: answer what would be done; nothing is written.",
        "schema": {"type": "string", "pattern": "^([Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee])$"},
    },
    "drop": {
        "description": "slot, publication or both: dropped in the source's database, after the tasks have ended.",
        "schema": {"type": "string", "examples": ["slot,publication"]},
    },
    "form": {
        "description": "debezium: as Debezium's connector would have stored them; the connector has to be stopped.",
        "schema": {"type": "string", "enum": ["debezium"]},
    },
    "includeTasks": {"description": "Its tasks too.", "schema": FLAG},
    "onlyFailed": {"description": "Only what failed.", "schema": FLAG},
    "connectorsOnly": {"description": "As in Kafka Connect; converters are built in.", "schema": FLAG},
    "version": {"description": "The plugin's version; there is one.", "schema": TEXT},
    "scope": {
        "description": "worker (default) or cluster.",
        "schema": {"type": "string", "examples": ["worker", "cluster"]},
    },
    "limit": {
        "description": "How many at most.",
        "schema": {"type": "integer", "minimum": 1, "maximum": NUMBERS_MAX["limit"]},
    },
    "restart": {
        "description": "expected: the tasks wait for the worker's return; none: they move at once.",
        "schema": {"enum": ["expected", "none"]},
    },
    "label": {
        "description": "`key=value`, or `key` with any value; all of them have to hold.",
        "schema": {"type": "array", "items": TEXT},
    },
    "connector": {"description": "Only of these connectors.", "schema": {"type": "array", "items": TEXT}},
    "last_event_id": {"description": "As the header Last-Event-ID, for clients that cannot set it.", "schema": TEXT},
    "deep": {"description": "true: also read rows, to tell how long a snapshot takes.", "schema": FLAG},
    "check": {
        "description": "Only these checks or groups; `*` stands for anything.",
        "schema": {"type": "array", "items": TEXT},
    },
    "source": {"description": "The source to compare with; else the one whose prefix the topics have.", "schema": TEXT},
    "table": {
        "description": "Only tables whose `schema.table` a pattern matches as a whole.",
        "schema": {"type": "array", "items": TEXT},
    },
    "repair": {
        "description": "true: keep the keys of differing rows until the next comparison, so that they can be repaired.",
        "schema": FLAG,
    },
    "comparison": {
        "description": "The id of the comparison whose rows are repaired; else the last one's.",
        "schema": TEXT,
    },
    "batch": {"description": "Which of the `batches` of rows, from 0 on.", "schema": {"type": "integer", "minimum": 0}},
    "keys": {"description": "true: tell the keys of differing rows, which are row values.", "schema": FLAG},
    "op": {
        "description": "Only these: create, update, delete, read, truncate, message, tombstone, upsert.",
        "schema": {"type": "array", "items": TEXT},
    },
    "key": {
        "description": "`column=value`, or the value of a key of one column; all of them have to hold.",
        "schema": {"type": "array", "items": TEXT},
    },
    "where": {
        "description": "`column=value`, in the row before or after; all of them have to hold. NULL is null.",
        "schema": {"type": "array", "items": TEXT},
    },
    "from": {
        "description": "now (default), beginning, an offset of every partition, an age like 15m, a time with its zone.",
        "schema": {"type": "string", "examples": ["now", "beginning", "15m", "2026-01-31T12:00:00Z"]},
    },
    "of": {"description": "The row's table: `schema.table`, or the table alone.", "schema": TEXT},
    "lsn": {
        "description": "Of the change, or of its commit: 0/16B3748 or a number; of MySQL and MariaDB a GTID, a file and a position, or a number; else the newest.",
        "schema": TEXT,
    },
    "follow": {"description": "false: only up to where the topics end now.", "schema": FLAG},
    "min_version": {
        "description": "Wait, briefly, until this worker has read the log so far (X-CDC-Version of a change).",
        "schema": {"type": "integer", "minimum": 0, "maximum": NUMBERS_MAX["min_version"]},
    },
    "again": {
        "description": "true: also somebody who is logged in at the identity provider logs in there anew.",
        "schema": FLAG,
    },
    "code": {"description": "What the identity provider gives for its tokens.", "schema": TEXT},
    "state": {"description": "Which login it is, as this cluster has told the identity provider.", "schema": TEXT},
    "iss": {"description": "Which identity provider answers.", "schema": TEXT},
    "error": {"description": "Why the identity provider logs nobody in.", "schema": TEXT},
    "topic": {"description": "Only of this topic.", "schema": TEXT},
    "after": {
        "description": "Go on behind this one: `next` of the answer before, TOPIC:PARTITION:OFFSET.",
        "schema": {"type": "string", "examples": ["shop.public.orders:0:17"]},
    },
}

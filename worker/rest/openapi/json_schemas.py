"""JSON Schemas of the bodies and answers of the REST API, and which operation has which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]


def _object(required: str = "", more: bool | Json = True, /, **properties: Any) -> Json:
    return {
        "type": "object",
        "required": required.split(),
        "properties": properties,
        "additionalProperties": more,
    }


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(of: Json) -> Json:
    return {"type": "array", "items": of}


def _map(of: Json) -> Json:
    return {"type": "object", "additionalProperties": of}


def _described(schema: Json, text: str) -> Json:
    return {**schema, "description": text}


def _or_null(kind: str) -> Json:
    return {"type": [kind, "null"]}


TEXT: Json = {"type": "string"}
NUMBER: Json = {"type": "integer"}
SCALAR: Json = {"type": ["string", "number", "boolean"]}
ANY_OBJECT: Json = {"type": "object"}
TASK_ID = _object("connector task", connector=TEXT, task=NUMBER)
TASK_CONFIG = _object("id config", id=TASK_ID, config=_map(TEXT))
TASK_STATES: Json = {"enum": ["UNASSIGNED", "RUNNING", "PAUSED", "FAILED", "RESTARTING", "STOPPED"]}
NUMBERS = _list(NUMBER)

SCHEMAS: Mapping[str, Json] = {
    "Error": _object(
        "error_code message",
        error_code=NUMBER,
        message=TEXT,
        code={"type": "string", "description": "Stable; `cdcworker errors CODE` explains it."},
        suggestion=_or_null("string"),
        configPath={
            "type": ["string", "null"],
            "description": "JSON pointer to what is wrong, /config/KEY for a key of a connector; ?NAME for a parameter.",
        },
        fix={"type": ["object", "null"], "description": "What a machine can apply: op, path, value."},
        where=ANY_OBJECT,
        errors=_list(_ref("Finding")),
    ),
    "Finding": _object(
        "severity code message",
        severity={"enum": ["error", "warning", "note"]},
        code=TEXT,
        message=TEXT,
        configPath=_or_null("string"),
        suggestion=_or_null("string"),
        fix=ANY_OBJECT,
    ),
    "Config": _map(SCALAR),
    "ConfigPatch": _map({"type": ["string", "number", "boolean", "null"]}),
    "ConfigMap": _map(TEXT),
    "Labels": {
        "type": "object",
        "maxProperties": 64,
        "propertyNames": {"pattern": r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$"},
        "additionalProperties": {"type": "string", "maxLength": 63},
    },
    "CreateConnector": _object(
        "name config",
        False,
        name=TEXT,
        config=_ref("Config"),
        initial_state={"type": "string", "examples": ["RUNNING", "PAUSED", "STOPPED"]},
        initial_offsets=_list(_ref("Offset")),
        labels=_ref("Labels"),
    ),
    "Level": _object("level", level={"type": "string", "examples": ["TRACE", "DEBUG", "INFO", "WARN", "ERROR"]}),
    "Offset": _object(
        "partition offset",
        False,
        partition={"type": ["object", "null"]},
        offset={"type": ["object", "null"], "description": "null forgets the partition."},
    ),
    "Offsets": _object("offsets", False, offsets=_list(_ref("Offset"))),
    "AlterOffsets": {
        "anyOf": [
            _ref("Offsets"),
            _object(
                "to",
                False,
                to={"type": "string", "examples": ["earliest", "now", "skip"]},
                task={"type": ["integer", "null"]},
            ),
        ]
    },
    "Message": _object("message", message=TEXT),
    "Root": _object("version commit kafka_cluster_id", version=TEXT, commit=TEXT, kafka_cluster_id=TEXT),
    "WorkerStatus": _object("status", status=TEXT, message=TEXT),
    "Live": _object("worker boot", worker=TEXT, boot=TEXT),
    "Caller": _object(
        "name by grants",
        name=TEXT,
        by=_described(
            TEXT, "token, basic, certificate, oidc, session or worker; empty where nobody has to say who asks"
        ),
        grants=_list(_object("role prefix", role=TEXT, prefix=TEXT)),
    ),
    "Logins": _object("single_sign_on", single_sign_on={"type": ["string", "null"]}),
    "LoggedOut": _object("location", location={"type": ["string", "null"]}),
    "ConnectorInfo": _object(
        "name config tasks type",
        name=TEXT,
        config=_map(TEXT),
        tasks=_list(TASK_ID),
        type={"enum": ["source", "sink", "unknown"]},
        notes=_list(_ref("Finding")),
    ),
    "TaskState": _object(
        "id state worker_id",
        id=NUMBER,
        state=TASK_STATES,
        worker_id=TEXT,
        trace=TEXT,
        version=TEXT,
        held_tables=NUMBER,
        **dict.fromkeys(("error", "retrying"), ANY_OBJECT),
    ),
    "ConnectorState": _object(
        "name connector tasks type",
        name=TEXT,
        connector=_object("state worker_id", state=TASK_STATES, worker_id=TEXT, trace=TEXT, error=ANY_OBJECT),
        tasks=_list(_ref("TaskState")),
        type={"enum": ["source", "sink", "unknown"]},
        health={"enum": ["healthy", "degraded", "failed"]},
        reason=TEXT,
    ),
    "ConnectorList": {
        "anyOf": [
            _list(TEXT),
            _map(_object(status=_ref("ConnectorState"), info=_ref("ConnectorInfo"))),
        ]
    },
    "Tasks": _list(TASK_CONFIG),
    "TaskConfigs": _map(_map(TEXT)),
    "Topics": _map(_object("topics", topics=_list(TEXT))),
    "Plugins": _list(_object("class type", **{"class": TEXT, "type": TEXT, "version": TEXT})),
    "ConfigKey": _object(
        "name type required default_value importance documentation group width display_name dependents order_in_group",
        name=TEXT,
        type={"enum": ["BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD"]},
        required={"type": "boolean"},
        default_value=_or_null("string"),
        importance=TEXT,
        documentation=TEXT,
        group=_or_null("string"),
        width=TEXT,
        display_name=TEXT,
        dependents=_list(TEXT),
        order_in_group=NUMBER,
        order=NUMBER,
    ),
    "ConfigKeys": _list(_ref("ConfigKey")),
    "ConfigInfos": _object(
        "name error_count groups configs",
        name=TEXT,
        error_count=NUMBER,
        groups=_list(TEXT),
        configs=_list(
            _object(
                "definition value",
                definition={"anyOf": [_ref("ConfigKey"), {"type": "null"}]},
                value=_object(
                    "name value recommended_values errors visible",
                    name=TEXT,
                    value=_or_null("string"),
                    recommended_values=_list(TEXT),
                    errors=_list(TEXT),
                    visible={"type": "boolean"},
                ),
            )
        ),
        findings=_list(_ref("Finding")),
    ),
    "Logger": _object("level last_modified", level=TEXT, last_modified=_or_null("integer")),
    "Loggers": _map(_ref("Logger")),
    "LoggerNames": _list(TEXT),
    "Cluster": _object(
        "leader workers tasks version",
        leader={"anyOf": [_object("id url epoch", id=TEXT, url=TEXT, epoch=NUMBER), {"type": "null"}]},
        workers=_list(_object("id alive draining tasks", id=TEXT, alive={"type": "boolean"}, tasks=NUMBER)),
        tasks=_list(_object("connector task state", connector=TEXT, task=NUMBER, state=TASK_STATES)),
        version=NUMBER,
        warnings=_described(_list(TEXT), "What the asked worker's properties leave open or unused."),
    ),
    "Journal": _object(
        "entries version",
        entries=_list(_object("seq ts cause moves", seq=NUMBER, ts=NUMBER, cause=TEXT, moves=_list(ANY_OBJECT))),
        version=NUMBER,
    ),
    "Draining": _object("status", status=TEXT),
    "ConnectorSummaries": _object(
        "connectors version",
        connectors=_list(
            _object(
                "name type class state health reason tasks labels topic_prefixes version created updated",
                name=TEXT,
                topic_prefixes=_described(
                    _list(TEXT), "What names of its topics begin with, by the grant of its owner; empty: anything."
                ),
                reason=TEXT,
                state=TASK_STATES,
                tasks=_map(NUMBER),
                labels=_ref("Labels"),
                version=NUMBER,
            )
        ),
        version=NUMBER,
    ),
    "Connection": _object(
        "name config version connectors created updated",
        name=TEXT,
        config=_map(TEXT),
        version=NUMBER,
        connectors=_described(_list(TEXT), "Those that use it and that the caller may see."),
        provides=_described(_map(_list(TEXT)), "By a class, the keys that its connectors get from the connection."),
        created=NUMBER,
        updated=NUMBER,
    ),
    "ConnectionList": _object("connections version", connections=_list(_ref("Connection")), version=NUMBER),
    "DryRun": _object(
        "dry_run effect",
        dry_run={"const": True},
        effect=TEXT,
        connector=TEXT,
        connection=TEXT,
        changes=_list(_object("key from to", **{"key": TEXT, "from": _or_null("string"), "to": _or_null("string")})),
        config=_map(TEXT),
        tasks={"type": ["object", "array"]},
        findings=_list(_ref("Finding")),
    ),
    "Subjects": _object("subjects", subjects=_list(_object("subject versions last change", subject=TEXT))),
    "Incidents": _object(
        "incidents objectives receivers",
        objectives=_list(
            _object(
                "objective connector target held budget_left late_s measured_s",
                target={"type": "number"},
                held={"type": ["number", "null"]},
                budget_left={"type": "number"},
            )
        ),
        incidents=_list(
            _object(
                "id connector kind severity code summary tasks tables opened resolved told",
                severity={"enum": ["warning", "critical"]},
                tasks=_list(NUMBER),
                tables=_list(TEXT),
                opened=NUMBER,
                resolved={"type": ["integer", "null"]},
                told=_map(TEXT),
            )
        ),
        receivers=_map(TEXT),
    ),
    "SchemaHistory": _object(
        "subject versions",
        subject=TEXT,
        versions=_list(_object("version fingerprint change columns added removed retyped", version=NUMBER)),
    ),
    "Examination": _object(
        "connector blocked counts findings",
        connector=TEXT,
        blocked={"type": "boolean"},
        counts=_map(NUMBER),
        findings=_list(
            _object(
                "check severity measured message why code configPath suggestion fix took_ms",
                check=TEXT,
                severity={"enum": ["ok", "note", "warning", "error", "unknown"]},
                fix={"type": ["object", "null"]},
            )
        ),
    ),
    "CreateSnapshot": _object(
        "tables",
        False,
        tables={
            "type": "array",
            "minItems": 1,
            "maxItems": 100,
            "items": {"type": "string", "examples": ["public.orders", r"public\..*"]},
            "description": "Full names, or regular expressions that match them as a whole.",
        },
        filters={**_map(TEXT), "description": "Conditions in SQL by entry of `tables`; they need the role admin."},
        rows_per_s={"type": "integer", "minimum": 0, "maximum": 10_000_000, "description": "At most; 0: no limit."},
    ),
    "Snapshot": _object(
        "id origin state wanted tables rows bytes tables_done tables_total rows_estimate rows_per_s eta_s details error",
        id=TEXT,
        origin={"enum": ["start", "table", "request", "signal"]},
        state={"enum": ["PENDING", "RUNNING", "PAUSED", "COMPLETED", "CANCELLED", "FAILED"]},
        wanted={"enum": ["RUNNING", "PAUSED", "CANCELLED"]},
        tables=_list(TEXT),
        filters={**_map(TEXT), "description": "Masked for callers without the role operate."},
        rows=_or_null("integer"),
        bytes=_or_null("integer"),
        tables_cancelled={
            **_or_null("integer"),
            "description": "Asked for and not wanted any more; none of tables_done.",
        },
        rows_per_s=_or_null("number"),
        eta_s={**_or_null("number"), "description": "null where nobody can tell."},
        waits_for=TEXT,
        details=_list(_object("table state rows bytes", table=TEXT, state=TEXT, rows=NUMBER, bytes=NUMBER)),
        error={"type": ["object", "null"]},
    ),
    "MaintenanceRun": _object(
        "id state created_ms started_ms ended_ms error",
        connector=TEXT,
        id=TEXT,
        state={"enum": ["PENDING", "COMPLETED", "CANCELLED", "FAILED"]},
        created_ms=NUMBER,
        started_ms=_or_null("integer"),
        ended_ms=_or_null("integer"),
        error={"type": ["object", "null"]},
    ),
    "Maintenance": _object(
        "connector tasks runs",
        connector=TEXT,
        tasks=_list(
            _object(
                "task runs last",
                task=NUMBER,
                runs={**NUMBER, "description": "Since the task began."},
                last={
                    "type": ["object", "null"],
                    "description": "took_s, rewritten, written, expired_snapshots, removed_files, conflicts, before, after, errors.",
                },
            )
        ),
        runs={**_list(_ref("MaintenanceRun")), "description": "Those that were asked for."},
    ),
    "Snapshots": _object("connector snapshots", connector=TEXT, snapshots=_list(_ref("Snapshot"))),
    "Comparison": _object(
        "connector id state source by worker started ended progress result error",
        connector=TEXT,
        state={"enum": ["running", "done", "failed"]},
        started=NUMBER,
        ended=_or_null("integer"),
        progress=_map(NUMBER),
        result={"type": ["object", "null"], "description": "verdict, position, differences, undecided, notes, tables."},
        error={"type": ["object", "null"]},
    ),
    "Repair": _object(
        "connector source comparison rows batches tables",
        connector=TEXT,
        source=TEXT,
        comparison={**TEXT, "description": "The id of the comparison."},
        rows={**NUMBER, "description": "Of all batches."},
        batches=NUMBER,
        batch=NUMBER,
        snapshot={
            **_or_null("string"),
            "description": "Of the source: it reads the rows of the batch. null: nothing is to be read.",
        },
        tables=_list(
            _object(
                "table missing different extra complete refused",
                table=TEXT,
                missing=NUMBER,
                different=NUMBER,
                extra=NUMBER,
                complete={"type": "boolean"},
                refused=_list(_object("rows why", rows=NUMBER, why=TEXT)),
            )
        ),
    ),
    "Way": _object(
        "connector table stages",
        connector=TEXT,
        stages=_list(_object("stage found at_ms text", stage=TEXT, found={"type": "boolean"}, text=TEXT)),
        searched={"type": "object", "description": "partitions, records, complete."},
        others=_list(ANY_OBJECT),
        error={"type": ["object", "null"]},
    ),
    "DeadLetters": _object(
        "connector total dead_letters next",
        connector=TEXT,
        total=NUMBER,
        dead_letters=_list(
            _object(
                "topic partition offset code cause at_ms key_bytes value_bytes",
                topic=TEXT,
                partition=NUMBER,
                offset=NUMBER,
                code=TEXT,
                cause=TEXT,
                at_ms=NUMBER,
                key_bytes=_or_null("integer"),
                value_bytes=_or_null("integer"),
            )
        ),
        next={**_or_null("string"), "description": "To go on behind; null: these were the last."},
    ),
    "Redriven": _object(
        "connector redriven rows failed left causes complete next",
        connector=TEXT,
        redriven={**NUMBER, "description": "Letters that are done with and gone."},
        rows={**NUMBER, "description": "Rows that are other now: none where newer changes of a key are there."},
        failed={**NUMBER, "description": "Letters that failed again and stay, with the new cause."},
        left=NUMBER,
        causes=_list(_object("code cause letters", code=TEXT, cause=TEXT, letters=NUMBER)),
        complete={"type": "boolean"},
        next={**_or_null("string"), "description": "Where the request's time was over."},
    ),
    "Document": ANY_OBJECT,
}

C = "/connectors/{connector}"
ANSWERS: Mapping[str, str] = {
    "GET /": "Root",
    "GET /health": "WorkerStatus",
    "GET /health 500": "WorkerStatus",
    "GET /health 503": "WorkerStatus",
    "GET /healthz": "WorkerStatus",
    "GET /healthz 503": "WorkerStatus",
    "GET /readyz": "WorkerStatus",
    "GET /readyz 503": "WorkerStatus",
    "GET /v1/live": "Live",
    "GET /v1/caller": "Caller",
    "GET /ui/logins": "Logins",
    "POST /ui/logout": "LoggedOut",
    "GET /v1/cluster": "Cluster",
    "GET /v1/cluster/journal": "Journal",
    "POST /v1/drain 202": "Draining",
    "GET /connectors": "ConnectorList",
    "POST /connectors 201": "ConnectorInfo",
    f"GET {C}": "ConnectorInfo",
    f"GET {C}/config": "ConfigMap",
    f"PUT {C}/config": "ConnectorInfo",
    f"PATCH {C}/config": "ConnectorInfo",
    f"GET {C}/status": "ConnectorState",
    f"POST {C}/restart 202": "ConnectorState",
    f"GET {C}/tasks": "Tasks",
    f"GET {C}/tasks-config": "TaskConfigs",
    f"GET {C}/tasks/{{task:int}}/status": "TaskState",
    f"GET {C}/topics": "Topics",
    f"GET {C}/offsets": "Offsets",
    f"PATCH {C}/offsets": "Message",
    f"DELETE {C}/offsets": "Message",
    "GET /connector-plugins": "Plugins",
    "GET /connector-plugins/{plugin}/config": "ConfigKeys",
    "PUT /connector-plugins/{plugin}/config/validate": "ConfigInfos",
    "GET /admin/loggers": "Loggers",
    "GET /admin/loggers/{logger}": "Logger",
    "PUT /admin/loggers/{logger}": "LoggerNames",
    "GET /v1/connectors": "ConnectorSummaries",
    "GET /v1/connections": "ConnectionList",
    "GET /v1/connections/{connection}": "Connection",
    "PUT /v1/connections/{connection}": "Connection",
    "GET /v1/connectors/{connector}/labels": "Labels",
    "PUT /v1/connectors/{connector}/labels": "Labels",
    "GET /v1/incidents": "Incidents",
    "GET /v1/schemas": "Subjects",
    "GET /v1/schemas/{subject}/history": "SchemaHistory",
    "GET /v1/connectors/{connector}/doctor": "Examination",
    "GET /v1/connectors/{connector}/snapshots": "Snapshots",
    "POST /v1/connectors/{connector}/snapshots 202": "Snapshot",
    "GET /v1/connectors/{connector}/snapshots/{snapshot}": "Snapshot",
    "PUT /v1/connectors/{connector}/snapshots/{snapshot}/pause 202": "Snapshot",
    "PUT /v1/connectors/{connector}/snapshots/{snapshot}/resume 202": "Snapshot",
    "DELETE /v1/connectors/{connector}/snapshots/{snapshot} 202": "Snapshot",
    "POST /v1/connectors/{connector}/verify 202": "Comparison",
    "GET /v1/connectors/{connector}/verify": "Comparison",
    "POST /v1/connectors/{connector}/verify/repair": "Repair",
    "POST /v1/connectors/{connector}/verify/repair 202": "Repair",
    "GET /v1/connectors/{connector}/explain": "Way",
    "GET /v1/connectors/{connector}/dead-letters": "DeadLetters",
    "GET /v1/connectors/{connector}/maintenance": "Maintenance",
    "POST /v1/connectors/{connector}/maintenance 202": "MaintenanceRun",
    "POST /v1/connectors/{connector}/dead-letters/redrive": "Redriven",
    "GET /v1/support": "Document",
    "GET /v1/openapi.json": "Document",
}
"""The schema of each operation's answer; the key ends with the status where that is not the usual success."""

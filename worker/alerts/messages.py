"""What receivers are sent: one message when an incident begins and one when it is over, with an id that stays the same when a message
comes again."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from cdcworker.connectors.network.webhook_signature import signature
from cdcworker.schemas.errors import CODES
from cdcworker.worker.alerts.incidents import Incident, Stage, to_json
from cdcworker.worker.alerts.settings import Receiver

SUMMARY_MAX: Final = 1_024
"""PagerDuty's limit in characters."""
SLACK_ESCAPES: Final = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"))
"""The characters that Slack's own markup begins with."""


class AlertMessage(NamedTuple):
    """The body of a request and its headers."""

    body: bytes
    headers: Mapping[str, str]


def message(receiver: Receiver, incident: Incident, stage: Stage, cluster: str) -> AlertMessage:
    """Returns the request that tells a receiver of an incident. `cluster` is the worker's `group.id`."""
    make = {"slack": _for_slack, "pagerduty": _for_pagerduty, "webhook": _for_webhook}[receiver.kind]
    body = json.dumps(make(receiver, incident, stage, cluster), separators=(",", ":")).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "cdcworker"}
    if receiver.kind == "webhook":
        id, at = f"{incident.id}.{stage}", str(int(time.time()))
        headers |= {"webhook-id": id, "webhook-timestamp": at, "Idempotency-Key": id}
        if receiver.secret is not None:
            headers["webhook-signature"] = signature(receiver.secret, id, at, body)
    return AlertMessage(body, headers)


def title(incident: Incident, cluster: str) -> str:
    """Returns the incident in one line."""
    condition = incident.condition
    code = f" [{condition.code}]" if condition.code else ""
    return f"{cluster}/{condition.connector}: {condition.summary}{code}"


def hint(incident: Incident) -> str:
    """Returns what to do about the incident's error; empty where there is none."""
    known = CODES.get(incident.condition.code)
    return known.hint if known is not None else ""


def iso(ms: int) -> str:
    """Returns a time in milliseconds since 1970 as ISO 8601."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _for_webhook(_receiver: Receiver, incident: Incident, stage: Stage, cluster: str) -> dict[str, Any]:
    shown = {name: value for name, value in to_json(incident).items() if name not in ("v", "told")}
    times = {name: iso(shown[name]) for name in ("opened", "resolved") if shown[name] is not None}
    at = incident.resolved_ms if stage == "resolved" else incident.opened_ms
    data = {**shown, "resolved": None, **times, "cluster": cluster, "hint": hint(incident)}
    return {"type": f"incident.{stage}", "timestamp": iso(at or incident.opened_ms), "data": data}


def _for_slack(_receiver: Receiver, incident: Incident, stage: Stage, cluster: str) -> dict[str, Any]:
    sign = ":white_check_mark:" if stage == "resolved" else ":rotating_light:"
    if stage == "opened" and incident.condition.severity == "warning":
        sign = ":warning:"
    lines = [f"{sign} *{_escaped(title(incident, cluster))}*"]
    if incident.condition.tables:
        lines.append("Tables: " + _escaped(", ".join(incident.condition.tables)))
    if stage == "resolved":
        lines.append(f"Resolved. It lasted from {iso(incident.opened_ms)} to {iso(incident.resolved_ms or 0)}.")
    elif hint(incident):
        lines.append(_escaped(hint(incident)))
    return {"text": "\n".join(lines)}


def _escaped(text: str) -> str:
    for character, entity in SLACK_ESCAPES:
        text = text.replace(character, entity)
    return text


def _for_pagerduty(receiver: Receiver, incident: Incident, stage: Stage, cluster: str) -> dict[str, Any]:
    event = {"routing_key": receiver.routing_key, "dedup_key": incident.id}
    if stage == "resolved":
        return {**event, "event_action": "resolve"}
    condition = incident.condition
    payload = {
        "summary": title(incident, cluster)[:SUMMARY_MAX],
        "source": cluster,
        "severity": condition.severity,
        "timestamp": iso(incident.opened_ms),
        "component": condition.connector,
        "group": cluster,
        "class": condition.code or condition.kind,
        "custom_details": {
            "kind": condition.kind,
            "tasks": list(condition.tasks),
            "tables": list(condition.tables),
            "hint": hint(incident),
        },
    }
    return {**event, "event_action": "trigger", "client": "cdcworker", "payload": payload}

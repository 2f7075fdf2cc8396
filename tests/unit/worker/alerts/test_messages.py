"""What receivers are sent."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cdcworker.schemas.errors import CODES
from cdcworker.worker.alerts.conditions import Condition
from cdcworker.worker.alerts.incidents import Incident
from cdcworker.worker.alerts.messages import message
from cdcworker.worker.alerts.settings import Receiver

from tests.record_sinks import is_signed

FAILED = Condition("shop", "failed", "critical", "1 of 1 task FAILED", "alerts.file_invalid", (0,), ("public.a",))
OPENED = Incident("0a1b", FAILED, 1_700_000_000_000, None, {"ops": "opened"})
OVER = replace(OPENED, resolved_ms=1_700_000_060_500)
HINT = CODES["alerts.file_invalid"].hint


def sent(kind, incident, stage, **more):
    made = message(Receiver("ops", kind, "https://x/", **more), incident, stage, "cluster-1")
    return json.loads(made.body), made


@pytest.mark.parametrize(("incident", "stage"), [(OPENED, "opened"), (OVER, "resolved")])
def test_a_web_hook_gets_the_incident_signed_with_an_id_of_its_own(incident, stage):
    body, made = sent("webhook", incident, stage, secret=b"key")
    assert (body["type"], made.headers["webhook-id"]) == (f"incident.{stage}", f"0a1b.{stage}")
    assert is_signed(b"key", made.headers, made.body)
    data = body["data"]
    assert (data["cluster"], data["connector"], data["code"], data["hint"]) == ("cluster-1", "shop", FAILED.code, HINT)
    assert (data["opened"], data["tasks"], data["tables"]) == ("2023-11-14T22:13:20.000Z", [0], ["public.a"])
    assert data["resolved"] == (None if stage == "opened" else "2023-11-14T22:14:20.500Z")
    assert "told" not in data


def test_without_a_secret_nothing_is_signed():
    _, made = sent("webhook", OPENED, "opened")
    assert "webhook-signature" not in made.headers


def test_slack_gets_one_text_in_which_nothing_is_markup_of_somebody_else():
    odd = replace(OPENED, condition=replace(FAILED, connector="<!channel>&", code=""))
    body, _ = sent("slack", odd, "opened")
    assert body == {"text": ":rotating_light: *cluster-1/&lt;!channel&gt;&amp;: 1 of 1 task FAILED*\nTables: public.a"}
    body, _ = sent("slack", OVER, "resolved")
    assert body["text"].splitlines()[-1].startswith("Resolved. It lasted from 2023-11-14T22:13:20.000Z to")
    body, _ = sent("slack", replace(OPENED, condition=replace(FAILED, severity="warning")), "opened")
    assert body["text"].startswith(":warning:")
    assert body["text"].splitlines()[-1] == HINT.replace("<", "&lt;").replace(">", "&gt;")


def test_pagerduty_gets_an_event_of_its_api_that_is_resolved_by_the_same_key():
    body, made = sent("pagerduty", OPENED, "opened", routing_key="r")
    assert (body["routing_key"], body["event_action"], body["dedup_key"]) == ("r", "trigger", "0a1b")
    payload = body["payload"]
    assert (payload["severity"], payload["component"], payload["class"]) == ("critical", "shop", FAILED.code)
    assert payload["summary"] == "cluster-1/shop: 1 of 1 task FAILED [alerts.file_invalid]"
    assert "webhook-id" not in made.headers
    body, _ = sent("pagerduty", OVER, "resolved", routing_key="r")
    assert body == {"routing_key": "r", "dedup_key": "0a1b", "event_action": "resolve"}

"""The file of alerts: what it may hold, and that a mistake is told by its place and without what is secret."""

from __future__ import annotations

import os

import pytest
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.alerts.settings import PAGERDUTY, parse, read

HOOK = {"name": "ops", "url": "https://hooks.example.com/x"}


def with_hook(**more):
    return {"receivers": [{**HOOK, **more}]}


def test_everything_has_a_place():
    found = parse(
        {
            "receivers": [
                {**HOOK, "secret": "whsec_c2VjcmV0", "connectors": ["shop-*", "orders"], "severity": "critical"},
                {"name": "team", "kind": "slack", "url": "https://hooks.slack.example.com/services/T/B/x"},
                {"name": "pager", "kind": "pagerduty", "routing_key": "0123"},
            ],
            "objectives": [{"name": "fresh", "freshness": "2m", "tables": "public.*", "severity": "critical"}],
            "hold": "5s",
            "resolve": 1.5,
        }
    )
    ops, team, pager = found.receivers
    assert (ops.secret, ops.connectors, ops.severity) == (b"secret", ("shop-*", "orders"), "critical")
    assert (team.kind, team.severity, team.connectors) == ("slack", "warning", ("*",))
    assert (pager.url, pager.routing_key) == (PAGERDUTY, "0123")
    (objective,) = found.objectives
    assert (objective.freshness_s, objective.tables, objective.connectors) == (120.0, ("public.*",), ("*",))
    assert (found.hold_s, found.resolve_s) == (5.0, 1.5)


@pytest.mark.parametrize(
    ("connector", "severity", "wanted"),
    [
        ("shop-1", "critical", True),
        ("shop-1", "warning", False),
        ("Shop-1", "critical", False),
        ("x", "critical", False),
    ],
)
def test_a_receiver_wants_its_connectors_from_a_severity_on(connector, severity, wanted):
    (receiver,) = parse(with_hook(connectors="shop-*", severity="critical")).receivers
    assert receiver.wants(connector, severity) is wanted


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (None, "the file"),
        ([], "the file"),
        ({}, "receivers"),
        ({"receivers": {}}, "receivers"),
        ({"receivers": "x"}, "receivers"),
        ({"receivers": [1]}, "receivers[0]"),
        ({"receivers": [HOOK, HOOK]}, "receivers"),
        ({"receivers": [HOOK], "recievers": []}, "the file"),
        (with_hook(name="a b"), "receivers[0].name"),
        (with_hook(kind="email"), "receivers[0].kind"),
        (with_hook(url=None), "receivers[0].url"),
        (with_hook(url="ftp://x/y"), "receivers[0].url"),
        (with_hook(url="https://"), "receivers[0].url"),
        (with_hook(url="https://hooks..example.com/"), "receivers[0].url"),
        (with_hook(url=f"https://{'a' * 64}.example.com/"), "receivers[0].url"),
        (with_hook(url="https://x:99999/"), "receivers[0].url"),
        (with_hook(url="https://x/\n"), "receivers[0].url"),
        (with_hook(secret="whsec_&"), "receivers[0].secret"),
        (with_hook(secret="whsec_"), "receivers[0].secret"),
        (with_hook(secret=5), "receivers[0].secret"),
        (with_hook(secret_file="x"), "receivers[0].secret_file"),
        (with_hook(secret_file="/no/such/file"), "receivers[0].secret_file"),
        (with_hook(secret="a", secret_file="/b"), "receivers[0]"),
        (with_hook(routing_key="a"), "receivers[0].routing_key"),
        ({"receivers": [{"name": "p", "kind": "pagerduty"}]}, "receivers[0].routing_key"),
        ({"receivers": [{"name": "p", "kind": "slack", **HOOK, "secret": "x"}]}, "receivers[0].secret"),
        (with_hook(connectors=[]), "receivers[0].connectors"),
        (with_hook(connectors=[""]), "receivers[0].connectors"),
        (with_hook(severity="fatal"), "receivers[0].severity"),
        ({"receivers": [HOOK], "hold": "1 day"}, "hold"),
        ({"receivers": [HOOK], "hold": True}, "hold"),
        ({"receivers": [HOOK], "resolve": "-1s"}, "resolve"),
        ({"receivers": [HOOK], "resolve": "999h"}, "resolve"),
        ({"receivers": [HOOK], "objectives": [{"name": "f"}]}, "objectives[0].freshness"),
        *(
            (
                {"receivers": [HOOK], "objectives": [{"name": "f", "freshness": 1, "target": value}]},
                "objectives[0].target",
            )
            for value in (0, 100, "99,9%", True, None, [], "9" * 9)
        ),
        ({"receivers": [HOOK], "objectives": [{"name": "f", "freshness": "1s", "table": "x"}]}, "objectives[0]"),
    ],
)
def test_a_mistake_is_told_by_its_place(content, place):
    with pytest.raises(ValueError, match=r".") as caught:
        parse(content)
    assert str(caught.value).startswith(f"{place}:")


@pytest.mark.parametrize(("given", "target"), [("99.9%", 0.999), (99.9, 0.999), ("50", 0.5)])
def test_a_target_is_a_share_in_percent(given, target):
    found = parse({"receivers": [HOOK], "objectives": [{"name": "f", "freshness": 1, "target": given}]})
    assert found.objectives[0].target == pytest.approx(target)


def test_secrets_may_lie_in_files_and_are_never_shown(tmp_path):
    (tmp_path / "key").write_text("a-long-secret\n")
    file = tmp_path / "alerts.yaml"
    file.write_text(f"receivers:\n- name: ops\n  url: https://x.example.com/hidden\n  secret_file: {tmp_path}/key\n")
    for path in (file, tmp_path / "key"):
        path.chmod(0o600)
    found = read(file)
    assert found.receivers[0].secret == b"a-long-secret"
    assert not any(secret in repr(found) for secret in ("a-long-secret", "hidden"))


@pytest.mark.parametrize(
    "text", ["receivers: [", "receivers:\n- name: ops\n  url: 'https://x/very-secret\n", "\x00", "- x"]
)
def test_what_is_no_such_file_has_a_code_and_repeats_nothing(tmp_path, text):
    file = tmp_path / "alerts.yaml"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(CdcError) as caught:
        read(file)
    assert caught.value.code == "alerts.file_invalid"
    assert "secret" not in str(caught.value)


def test_a_file_that_others_may_write_is_refused(tmp_path):
    file = tmp_path / "alerts.yaml"
    file.write_text("receivers:\n- {name: ops, url: 'https://x/'}\n")
    os.chmod(file, 0o666)
    with pytest.raises(CdcError, match="everybody may write"):
        read(file)

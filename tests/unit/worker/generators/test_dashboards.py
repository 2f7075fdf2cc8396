"""The board and the alert rules name metrics that exist, in expressions that Prometheus understands."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import promql_parser
import pytest
import yaml
from cdcworker.worker.generators import dashboards as monitoring
from cdcworker.worker.rest.resources.monitoring.metric_table import ALL

from . import promql

ROOT = Path(__file__).resolve().parents[4]
NAMES = {metric.name for metric in ALL}
PROMTOOL = shutil.which("promtool")
RULE_TESTS = Path(__file__).with_name("rules_test.yaml")


@pytest.mark.parametrize("expression", sorted(set(monitoring.expressions())))
def test_an_expression_is_understood_and_its_metrics_exist(expression):
    promql_parser.parse(expression.replace("$__rate_interval", "1m").replace("$connector", ".*"))
    found = monitoring.series(expression)
    assert found
    assert found <= NAMES


def test_a_metric_that_is_not_there_would_be_found():
    assert not monitoring.series("sum(cdc_source_recordz_total)") <= NAMES


def test_every_metric_is_on_the_board():
    panels = [expr for row in monitoring.ROWS for panel in row.panels for expr in panel.queries.values()]
    assert {name for expr in panels for name in monitoring.series(expr)} == NAMES


def test_the_files_are_up_to_date():
    for name, text in monitoring.files().items():
        assert (ROOT / monitoring.FOLDER / name).read_text() == text, "run `make monitoring`"


def test_no_panel_covers_another():
    seen = set()
    for panel in monitoring.board()["panels"]:
        at = panel["gridPos"]
        fields = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        assert not fields & seen, panel["title"]
        assert at["x"] + at["w"] <= 24
        seen |= fields


def test_each_alert_has_a_test():
    tested = {
        alert["alertname"]
        for test in yaml.safe_load(RULE_TESTS.read_text())["tests"]
        for alert in test["alert_rule_test"]
    }
    assert tested == {alert.name for alert in monitoring.ALERTS}


RULES = {rule["alert"]: rule for rule in monitoring.rules()["spec"]["groups"][0]["rules"]}
CASES = [
    pytest.param(test, case, id=f"{case['alertname']} after {case['eval_time']}")
    for test in yaml.safe_load(RULE_TESTS.read_text())["tests"]
    for case in test["alert_rule_test"]
]


@pytest.mark.parametrize(("test", "case"), CASES)
def test_an_alert_is_quiet_and_fires_when_it_should_and_says_what_it_should(test, case):
    every_s = promql.seconds(test["interval"])
    series = [promql.Series.of(one["series"], str(one["values"]), every_s) for one in test["input_series"]]
    assert promql.firing(RULES[case["alertname"]], series, promql.seconds(case["eval_time"])) == case["exp_alerts"]


def test_each_alert_has_a_time_at_which_it_is_quiet_and_one_at_which_it_fires():
    seen = {(case["alertname"], bool(case["exp_alerts"])) for _, case in (one.values for one in CASES)}
    assert seen == {(name, fires) for name in RULES for fires in (True, False)}


def test_prometheus_itself_takes_the_rules_and_their_tests_pass(tmp_path):
    if PROMTOOL is None:
        pytest.skip("promtool is not installed (go install github.com/prometheus/prometheus/cmd/promtool)")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(monitoring.rules()["spec"]))
    (tmp_path / RULE_TESTS.name).write_text(RULE_TESTS.read_text())
    for words in (["check", "rules", "rules.yaml"], ["test", "rules", RULE_TESTS.name]):
        done = subprocess.run([PROMTOOL, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

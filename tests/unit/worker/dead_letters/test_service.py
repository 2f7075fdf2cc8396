"""Dead letters over a child: what is asked, what is counted, what its errors become."""

from __future__ import annotations

import pytest
from cdcworker.coordinator.model import Connector
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.dead_letters.service import DeadLetters


def connector(kind: str = "sink") -> Connector:
    return Connector("s", "inc", 1, {"connector.class": "spark"}, "RUNNING", kind=kind)


def letters(answer):
    questions = []

    def ask(question):
        questions.append(question)
        return answer

    return DeadLetters({"bootstrap.servers": "k:1"}, {}, "g.schemas", ask), questions


def test_what_was_applied_again_is_counted_by_connector_and_a_trial_is_not():
    service, questions = letters({"redriven": 3})
    service.redrive(connector(), {"dry_run": True})
    assert service.redriven == {}
    service.redrive(connector(), {"topic": "t"})
    service.redrive(connector(), {})
    assert service.redriven == {"s": 6}
    assert [question["do"] for question in questions] == ["redrive"] * 3
    assert questions[1]["asked"]["topic"] == "t"
    assert questions[1]["asked"]["seconds"] > 0


def test_a_source_has_none_and_no_child_is_asked():
    service, questions = letters({})
    with pytest.raises(CdcError) as caught:
        service.show(connector("source"), {})
    assert caught.value.code == "letters.not_kept"
    assert questions == []


@pytest.mark.parametrize(("kind", "code"), [("transient", "letters.unfinished"), ("config", "letters.refused")])
def test_an_error_of_the_child_says_whether_to_ask_again(kind, code):
    error = {"code": "spark.x", "kind": kind, "message": "away", "hint": "wait", "where": {"topic": "t"}}
    service, _ = letters({"error": error})
    with pytest.raises(CdcError) as caught:
        service.redrive(connector(), {})
    assert caught.value.code == code
    assert "[spark.x] away" in caught.value.message
    assert service.redriven == {}

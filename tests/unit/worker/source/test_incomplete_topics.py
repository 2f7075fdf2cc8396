"""Compacted topics whose rows may lack large values are named, where the task does not read such rows again."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from cdcworker.worker.source.incomplete_topics import NAMED_MAX, IncompleteTopics


@dataclass
class Task:
    completes_rows: bool


class Encoder:
    def path_of(self, topic: str) -> tuple[str, ...]:
        return () if topic == "shop.transaction" else ("public", topic)


TOPICS = ["shop.public.b", "shop.transaction", "shop.public.a"]


@pytest.mark.parametrize(
    ("task", "expected"), [(Task(False), ["shop.public.a", "shop.public.b"]), (Task(True), []), (object(), [])]
)
def test_topics_of_tables_are_named_where_rows_may_lack_values(task, expected):
    assert IncompleteTopics(task, Encoder(), lambda: TOPICS).names() == expected


def test_each_is_said_once_in_the_log_and_a_report_names_some(caplog):
    topics = [f"shop.public.{number}" for number in range(NAMED_MAX + 1)]
    found = IncompleteTopics(Task(False), Encoder(), lambda: topics)
    assert len(found.names()) == len(found.names()) == NAMED_MAX
    assert len([one for one in caplog.records if "may lack large values" in one.message]) == len(topics)

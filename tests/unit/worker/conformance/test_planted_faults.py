"""The kit finds what plugins do wrong: each fault is planted in a plugin that passes without it, and is found by the check named."""

from __future__ import annotations

import contextlib
import copy
import re
import threading
import time

import pytest
from cdcworker.connectors.api.kit import (
    ConfigKey,
    ConnectRecord,
    ConnectSchema,
    DataError,
    RecordRefused,
    SinkPlugin,
    SourceField,
    SourcePage,
    SourcePlugin,
    SourceRecord,
    SourceTable,
    TransformPlugin,
    Unavailable,
    between,
    struct,
)
from cdcworker.connectors.kit.connector_classes import sink_class, source_class
from cdcworker.worker.conformance.findings import findings
from cdcworker.worker.conformance.harness import TransformHarness
from cdcworker.worker.conformance.sink_checks import SinkChecks
from cdcworker.worker.conformance.source_checks import Limits, SourceChecks
from cdcworker.worker.conformance.transform_checks import TransformChecks

CONFIG, ORDER, RESTART = "a config is judged", "rows come once", "a restart from any"
TEXTS, OUTAGE, PAGE = "texts of any kind", "an outside that is away", "a page is bounded"


class Rows:
    """The outside of a source: rows by number, which can be away."""

    config, unfit = {"most": "1000"}, {"most": "none"}

    def __init__(self):
        self.texts, self.is_away = [], False

    def write(self, count):
        self.texts += [f"row {len(self.texts) + n}" for n in range(count)]

    def write_text(self, text):
        self.texts.append(text)

    def rows(self):
        return [("rows", {"id": n, "text": text}) for n, text in enumerate(self.texts)]

    def stop(self):
        self.is_away = True

    def start(self):
        self.is_away = False

    def close(self):
        pass


class Source:
    """One that does all right, with places where a fault can be planted."""

    outside: Rows
    most = 1000

    def __init__(self, place):
        self.place = place

    def tables(self):
        return [SourceTable("rows", [SourceField("id", "int64"), SourceField("text")], key=["id"])]

    def after(self, cursor):
        return cursor["n"] if cursor else 0

    def cursor(self, begin, end):
        return {"n": end}

    def text(self, text):
        return text

    def away(self, cursor):
        raise Unavailable("nobody answers")

    def ordered(self, records):
        return records

    def read(self, cursor):
        if self.outside.is_away:
            return self.away(cursor)
        begin = self.after(cursor)
        texts = self.outside.texts[begin : begin + self.most]
        records = [SourceRecord("rows", {"id": begin + n, "text": self.text(text)}) for n, text in enumerate(texts)]
        end = begin + len(texts)
        return SourcePage(self.ordered(records), self.cursor(begin, end), more=end < len(self.outside.texts))


class TellsTooFar(Source):
    def cursor(self, begin, end):
        return {"n": end + 1 if end > begin else end}


class TellsTooLittle(Source):
    def cursor(self, begin, end):
        return {"n": max(begin, end - 1), "page": end}


class Remembers(Source):
    n = 0

    def after(self, cursor):
        return self.n

    def cursor(self, begin, end):
        self.n = end
        return {"n": end}


class Reverses(Source):
    def ordered(self, records):
        return records[::-1]


class CleansTexts(Source):
    def text(self, text):
        return text.replace("\0", "")


class CutsTexts(Source):
    def text(self, text):
        return text[:65_535]


class TakesAllAtOnce(Source):
    most = 1_000_000


class RaisesWhenAway(Source):
    def away(self, cursor):
        raise ConnectionError("refused")


class HangsWhenAway(Source):
    def away(self, cursor):
        threading.Event().wait(3.0)
        raise Unavailable("at last")


class MovesOnWhenAway(Source):
    def away(self, cursor):
        return SourcePage([], {"n": len(self.outside.texts)})


ANY = (ConfigKey("most", "INT", 1000, doc="Rows of a page.", validator=between(1)),)
SOURCES = [
    (TellsTooFar, ORDER), (TellsTooLittle, ORDER), (Remembers, RESTART), (Reverses, ORDER), (CleansTexts, TEXTS), (CutsTexts, TEXTS),
    (TakesAllAtOnce, PAGE), (RaisesWhenAway, OUTAGE), (HangsWhenAway, OUTAGE), (MovesOnWhenAway, OUTAGE),
]  # fmt: skip


QUICK = Limits(1.5, 2.0, 0.2)
"""A fault that shows by what does not come."""
PATIENT = Limits(away_s=0.2)


def source_problems(made, keys=ANY, limits=PATIENT):
    outside = Rows()
    plugin = SourcePlugin(type("Made", (made,), {"outside": outside}), keys=keys)
    config = {"connector.class": "rows", "topic.prefix": "p", "poll.interval.ms": "0", **outside.config}
    checks = SourceChecks(source_class("rows", "1", plugin), outside, config, limits=limits)
    return [found.name for found in findings(checks.all()) if found.problem]


def test_a_source_without_a_fault_passes():
    assert source_problems(Source) == []


@pytest.mark.parametrize(("made", "check"), SOURCES)
def test_a_fault_of_a_source_is_found(made, check):
    assert any(name.startswith(check) for name in source_problems(made, limits=QUICK))


@pytest.mark.parametrize(
    "key",
    [ConfigKey("most", doc="Anything goes."), ConfigKey("most", "INT"), ConfigKey("pin", "PASSWORD", doc="A secret.")],
)
def test_keys_that_say_too_little_are_found(key):
    keys = (key,) if key.name == "most" else (*ANY, key)
    assert [name[: len(CONFIG)] for name in source_problems(Source, keys)] == [CONFIG]


class Shelf:
    """The outside of a sink."""

    config, unfit = {"most": "10"}, {"most": "none"}

    def __init__(self):
        self.ids, self.is_away = [], False

    def put(self, record):
        if self.is_away:
            raise ConnectionError("nobody there")
        self.ids.append(record.id)

    def received(self):
        return self.ids

    def stop(self):
        self.is_away = True

    def start(self):
        self.is_away = False

    def close(self):
        pass


class Target:
    shelf: Shelf

    def __init__(self, place):
        self.held = []

    def write(self, batch):
        try:
            for record in batch.records:
                self.shelf.put(record)
        except ConnectionError:
            raise Unavailable("the shelf is away") from None


class Holds(Target):
    def write(self, batch):
        self.held += batch.records
        while len(self.held) >= 50:
            self.shelf.put(self.held.pop(0))


class Swallows(Target):
    def write(self, batch):
        with contextlib.suppress(Unavailable):
            super().write(batch)


class Sorts(Target):
    def write(self, batch):
        for record in sorted(batch.records, key=lambda each: each.id):
            self.shelf.put(record)


class RefusesTombstones(Target):
    def write(self, batch):
        for record in batch.records:
            if record.value["text"] is not None:
                self.shelf.put(record)


class DropsStrange(Target):
    def write(self, batch):
        if any(record.value and not record.value["text"].isprintable() for record in batch.records):
            raise RecordRefused("not printable")
        super().write(batch)


class RaisesAway(Target):
    def write(self, batch):
        for record in batch.records:
            self.shelf.put(record)


class RefusesAgain(Target):
    def write(self, batch):
        if any(record.id in self.shelf.ids for record in batch.records):
            raise RecordRefused("there already")
        super().write(batch)


TARGETS = [
    (Holds, "what was written is there"), (Swallows, "a target that is away"), (Sorts, "what was written is there"),
    (RefusesTombstones, "tombstones"), (DropsStrange, "tombstones"), (RaisesAway, "a target that is away"),
    (RefusesAgain, "a batch may come again"),
]  # fmt: skip


def sink_problems(made):
    shelf = Shelf()
    plugin = SinkPlugin(type("Made", (made,), {"shelf": shelf}), keys=ANY)
    checks = SinkChecks(
        sink_class("shelf", plugin), shelf, {"connector.class": "shelf", "topics": "t", "name": "s", **shelf.config}
    )
    return [found.name for found in findings(checks.all()) if found.problem]


def test_a_target_without_a_fault_passes():
    assert sink_problems(Target) == []


@pytest.mark.parametrize(("made", "check"), TARGETS)
def test_a_fault_of_a_target_is_found(made, check):
    assert any(name.startswith(check) for name in sink_problems(made))


ROW = struct(("id", ConnectSchema("int64")), ("text", ConnectSchema("string", optional=True)))
RECORDS = [ConnectRecord("t", ROW, {"id": n}, ROW, {"id": n, "text": "x"}) for n in range(3)]
SEEN = []


def upper(record, config):
    if record.value is None:
        return record
    if record.value_schema is None or record.value_schema.type != "struct":
        raise DataError("Only structs have a text")
    return record.with_value(record.value_schema, {**record.value, "text": record.value["text"].upper()})


def changes_what_it_is_given(record, config):
    made = upper(record, config)
    if isinstance(record.value, dict):
        record.value["text"] = "changed"
    return made


def counts(record, config):
    made = upper(record, config)
    SEEN.append(1)
    return made.with_topic(f"t{len(SEEN)}")


def knows_no_tombstone(record, config):
    return record.with_value(record.value_schema, {**record.value, "text": "x"})


def dawdles(record, config):
    deadline = time.monotonic() + 1.1
    while isinstance(record.value, dict) and time.monotonic() < deadline:
        pass
    return upper(record, config)


TRANSFORMS = [
    (changes_what_it_is_given, "a record that is given"), (counts, "the same record"), (knows_no_tombstone, "a record of any kind"),
    pytest.param(dawdles, "a record is done", marks=pytest.mark.long), (lambda record, config: record.value, "the same record"),
]  # fmt: skip


def transform_problems(function):
    checks = TransformChecks(TransformPlugin(function), TransformHarness({}, copy.deepcopy(RECORDS[:2])))
    return [found.name for found in findings(checks.all()) if found.problem]


def test_a_transform_without_a_fault_passes():
    assert transform_problems(upper) == []


@pytest.mark.parametrize(("function", "check"), TRANSFORMS)
def test_a_fault_of_a_transform_is_found(function, check):
    assert any(re.match(check, name) for name in transform_problems(function))

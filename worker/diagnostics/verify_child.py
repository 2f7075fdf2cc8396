"""The child that compares a sink with its source: a JSON question on stdin, its progress and result as lines of JSON."""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cdcworker.connectors.capture.tables.compared_source import ComparedSource
from cdcworker.connectors.comparison.opening import ComparedConnectors, opened
from cdcworker.connectors.comparison.repair import repair_json, repaired_kinds_of
from cdcworker.connectors.config.definition import parse_list
from cdcworker.connectors.verify import report
from cdcworker.connectors.verify.compare import CATCH_UP_S, CompareSettings, Comparison
from cdcworker.connectors.verify.databases import TargetSide, VerifyLimits
from cdcworker.connectors.verify.report import Tally
from cdcworker.coordinator.model import JsonObject
from cdcworker.schemas.errors import INTERNAL, CdcError
from cdcworker.schemas.topic_access import TopicAccess
from cdcworker.worker.children.answer import read_question
from cdcworker.worker.config.config_providers import resolve
from cdcworker.worker.config.file_roots import file_roots
from cdcworker.worker.logs.redaction import clean, clean_all
from cdcworker.worker.security.topic_rules import access_of

TELL_S: Final = 0.5
Say = Callable[[Mapping[str, Any]], None]


def main() -> int:
    with read_question() as (question, out):

        def say(item: Mapping[str, Any]) -> None:
            out.write(json.dumps(item, separators=(",", ":")) + "\n")
            out.flush()

        answer(question, say)
    return 0


def answer(question: JsonObject, say: Say) -> None:
    """The last line has a `result`, with `keys` beside it, or an `error`."""
    try:
        compare(question, say)
    except CdcError as error:
        say({"error": clean_all(error.to_dict())})
    except Exception as error:  # noqa: BLE001 - the edge of the process; the text may hold values, the type does not
        say({"error": CdcError(INTERNAL, f"{type(error).__name__} while comparing").to_dict()})


def compare(question: JsonObject, say: Say) -> None:
    from cdcworker.connectors.registry.names import lookup
    from cdcworker.worker.diagnostics.verify_goal import SourceProgress
    from cdcworker.worker.task.sink_runner import finder

    providers, began = question["providers"], time.monotonic()
    sink, source = (resolve(question[name]["config"], providers) for name in ("sink", "source"))
    access, roots = access_of(providers, question["sink"]["prefixes"]), file_roots(providers)
    topics = _topics(question, sink, access)
    machine = finder(lookup(sink.get("connector.class", "")).load()(sink))
    held, theirs = question.get("held", {}), question.get("held_by_source", {})
    wanted = ComparedConnectors(
        question["sink"]["name"], sink, source, topics, question["tables"], roots, machine, held, theirs, access
    )
    limits, timeout_s = limits_of(sink)
    origin = (question["source"]["name"], int(question["source"]["tasks"]))
    with contextlib.ExitStack() as stack:
        progress = SourceProgress(question["kafka"], str(source["topic.prefix"]), origin)
        stack.callback(progress.close)

        def catch_up(topics: Sequence[str], left: ComparedSource, right: TargetSide) -> None:
            progress.follow(topics, left.reached)
            deadline = began + min(timeout_s, CATCH_UP_S)
            position = left.begin()
            left.end()
            right.begin(progress.goal(position, deadline), deadline)
            right.end()

        both = stack.enter_context(opened(wanted, limits, catch_up))
        settings = CompareSettings(limits, timeout_s=timeout_s)
        if is_for_repair := bool(question.get("repair")):
            settings.kept = repaired_kinds_of(both)
        run = Comparison(both.source, both.target, progress.goal, settings, _teller(say))
        run.tally.notes += map(clean, both.notes)
        tally = run.run(both.plans)
        repair = {"repair": repair_json(both, tally)} if is_for_repair else {}
    salt = secrets.token_bytes(16)
    took = max(0.001, time.monotonic() - began)
    speed = {"seconds": round(took, 3), "rows_per_s": round(tally.rows_read / 2 / took, 1)}
    say(
        {
            "result": {**report.result(tally, salt, both.source.position_text), **speed},
            "keys": report.keys(tally, salt),
            **repair,
        }
    )


def limits_of(config: Mapping[str, str]) -> tuple[VerifyLimits, float]:
    from cdcworker.connectors.registry.names import lookup

    parsed = lookup(config.get("connector.class", "")).load().config_def.parse(config)
    limits = VerifyLimits(
        parsed["verify.range.rows"], parsed["verify.rows.per.s"], parsed["verify.statement.timeout.ms"]
    )
    return limits, parsed["verify.timeout.ms"] / 1000


def _topics(question: JsonObject, sink: Mapping[str, str], access: TopicAccess) -> tuple[str, ...]:
    """Returns the existing topics that the sink may read. CdcError when it names others."""
    from cdcworker.worker.offsets.service import partitions

    there = partitions(question["kafka"], "")[1].keys()
    access.check_read(parse_list(sink.get("topics", "")), lambda _: there)
    return tuple(access.readable(there))


def _teller(say: Say) -> Callable[[Tally], None]:
    """Now and then: whoever listens is a person."""
    told = [float("-inf")]

    def tell(tally: Tally) -> None:
        if time.monotonic() - told[0] > TELL_S:
            told[0] = time.monotonic()
            say({"progress": tally.progress})

    return tell


if __name__ == "__main__":
    sys.exit(main())

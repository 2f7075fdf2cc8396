"""Live changes of a connector's topics: a child reads and decodes them, this side hands on its lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from cdcworker.coordinator.model import Connector, JsonObject, View
from cdcworker.schemas.errors import declare
from cdcworker.schemas.patterns import list_problem
from cdcworker.worker.diagnostics.change_view import OP_NAMES, ChangeFilter

COMMAND: Final = (sys.executable, "-m", "cdcworker.worker.diagnostics.tail_child")
AT_ONCE_MAX: Final = 4
LINE_BYTES_MAX: Final = 1 << 20
"""A child shortens what would be longer."""
AGO: Final = re.compile(r"([0-9]{1,6})(s|m|h|d)")
UNIT_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
OFFSET_DIGITS_MAX: Final = 18
BESIDE: Final = ("watermark", "transaction")
"""Topics of a prefix that hold no rows."""
Json = dict[str, Any]

ENDED: Final = declare(
    "changes.ended",
    "transient",
    "The process that reads the topics has ended",
    "Ask again; the worker's log tells more if it goes on.",
)
NO_TOPICS: Final = declare(
    "changes.no_topics",
    "config",
    "The connector has no topics of rows yet",
    "Look at its state, and at its topics: GET /connectors/NAME/topics.",
)


@dataclass(frozen=True, slots=True)
class TailTopics:
    """The topics that hold the rows: these names, and every other one that the pattern matches as a whole, within the
    connector's bound."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    prefixes: tuple[str, ...] = ()
    """What the names of the connector's topics begin with; empty: anything."""


@dataclass(frozen=True, slots=True)
class TailRequest:
    """`begin`: now, beginning, offset or time, `at` its number. `follow` false: up to the ends as they are now."""

    filter: ChangeFilter = field(default_factory=ChangeFilter)
    begin: str = "now"
    at: int = 0
    limit: int = 0
    follow: bool = True

    @property
    def may_drop(self) -> bool:
        """Returns whether events may be dropped for a slow reader. One who follows the present is told how many were;
        one who reads the past is waited for."""
        return self.begin == "now"


def parse_begin(text: str, now_s: float) -> tuple[str, int]:
    """`now`, `beginning`, an offset, `15m` ago, or a time in ISO 8601. Raises ValueError."""
    if text in ("now", "beginning"):
        return text, 0
    if text.isascii() and text.isdigit() and len(text) <= OFFSET_DIGITS_MAX:
        return "offset", int(text)
    ago = AGO.fullmatch(text)
    if ago:
        return "time", round((now_s - int(ago[1]) * UNIT_S[ago[2]]) * 1000)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time needs its zone, as in 2026-01-31T12:00:00Z")
    return "time", round(moment.timestamp() * 1000)


def check_filter(found: ChangeFilter) -> None:
    """Raises ValueError with what is wrong."""
    if problem := list_problem(found.tables):
        raise ValueError(f"a table's pattern: {problem}")
    unknown = [op for op in found.ops if op not in OP_NAMES]
    if unknown:
        raise ValueError(f"there is no operation {unknown[0][:20]}; there are {', '.join(OP_NAMES)}")
    if any("=" not in text for text in found.where):
        raise ValueError("a condition is COLUMN=VALUE")


def topics_of(view: View, connector: Connector) -> TailTopics:
    """A sink's are configured; a source's are those that it is known to write, and those of its prefix."""
    if connector.kind == "sink":
        listed = tuple(name.strip() for name in connector.config.get("topics", "").split(",") if name.strip())
        pattern = "" if listed else connector.config.get("topics.regex", "")
        return TailTopics(listed, pattern, connector.topic_prefixes)
    prefix = connector.config.get("topic.prefix", "").strip()
    beside = {f"{prefix}.{name}" for name in BESIDE}
    known = tuple(sorted(view.topics.get(connector.name, frozenset()) - beside))
    if not prefix:
        return TailTopics(known, "", connector.topic_prefixes)
    return TailTopics(known, rf"{re.escape(prefix)}\.(?!(?:{'|'.join(BESIDE)})$).+", connector.topic_prefixes)


class TailChildren:
    """Starts children; `kafka` are the worker's client properties, `rules` say which topics nobody may look at."""

    def __init__(
        self,
        kafka: Mapping[str, str],
        schemas_topic: str,
        command: Sequence[str] = COMMAND,
        rules: Mapping[str, str] | None = None,
    ) -> None:
        self._kafka = dict(kafka)
        self._rules = dict(rules or {})
        self._schemas = schemas_topic
        self._command = tuple(command)
        self._running = 0

    @property
    def is_full(self) -> bool:
        return self._running >= AT_ONCE_MAX

    @contextlib.asynccontextmanager
    async def reading(self, topics: TailTopics, asked: TailRequest) -> AsyncIterator[asyncio.StreamReader]:
        """Lines of JSON, read as fast as one wants; the child ends with the block."""
        question: JsonObject = {
            "kafka": self._kafka,
            "schemas": self._schemas,
            "topics": list(topics.names),
            "pattern": topics.pattern,
            "prefixes": list(topics.prefixes),
            "rules": self._rules,
            **asdict(asked),
        }
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        self._running += 1
        try:
            child = await asyncio.create_subprocess_exec(*self._command, **pipes, limit=LINE_BYTES_MAX)  # type: ignore[arg-type]
            try:
                assert child.stdin is not None
                assert child.stdout is not None
                child.stdin.write(json.dumps(question).encode())
                child.stdin.close()
                yield child.stdout
            finally:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await child.wait()
        finally:
            self._running -= 1

"""The source of a JSON API: reads pages, and keeps in its cursor what was read."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from cdcworker.connectors.api.context import CheckFinding
from cdcworker.connectors.api.kit import Misconfigured, SourcePage, SourcePlace, SourceRecord, SourceTable
from cdcworker.connectors.http_source.changed_rows import Marks, behind, changes_of_list, marks_of
from cdcworker.connectors.http_source.items import proposed, table_of
from cdcworker.connectors.http_source.pages import COUNTED, PARAMETERS, ElsewhereError, Paging, judged
from cdcworker.connectors.http_source.pointers import parse_pointer, value_at
from cdcworker.connectors.http_source.requests import ANSWER_UNEXPECTED, OTHER_SERVER, Requests
from cdcworker.connectors.kit.list_comparison import LIST_BYTES_MAX, LIST_ROWS_MAX, digest, is_too_long
from cdcworker.connectors.kit.rows import TableShape
from cdcworker.connectors.network.http_client import Answer
from cdcworker.schemas.change import JsonObject
from cdcworker.schemas.errors import CdcError, declare

log = logging.getLogger(__name__)

FIELDS_PROPOSED: Final = declare(
    "http.fields_proposed",
    "config",
    "No fields are declared: a row has its key as text, and the item as JSON",
    "Set http.fields to what the message proposes by the items of the first page, and correct it where you know better.",
)
LIST_TOO_LONG: Final = declare(
    "http.list_too_long",
    "config",
    "A list is too long to be compared with what it was",
    "Set http.cursor.field, and http.cursor.parameter where the API has one: then only what has changed is read.",
)
LIST_S_MAX: Final = 40.0
"""A list is read by one call: a task that makes no step for a minute is killed."""
PASSED_MAX: Final = 100_000
"""So many pages of a round are remembered."""
GONE: Final = (400, 404, 410)
"""How servers answer for a page of which they know no more."""
PROPOSAL_CHARS_MAX: Final = 2_000


class _Read(NamedTuple):
    """One page."""

    items: Sequence[Any]
    next: str | None


class HttpItems:
    """Items of one address. With a cursor field its cursor holds the marks and the next page, else digests of the whole list."""

    def __init__(self, place: SourcePlace) -> None:
        config = self._config = place.config
        self._place = place
        self._table = table_of(config)
        self._mark = parse_pointer(config["http.cursor.field"]) if config["http.cursor.field"] else None
        self._items = parse_pointer(config["http.items.pointer"])
        kind = config["http.pagination"]
        first = 0 if kind == "offset" else 1 if config["http.page.first"] is None else config["http.page.first"]
        self._paging = Paging(
            kind,
            config["http.url"],
            config["http.page.parameter"] or PARAMETERS.get(kind, ""),
            first,
            config["http.page.size"],
            config["http.page.size.parameter"] or "",
            parse_pointer(config["http.next.pointer"] or ""),
        )
        self._requests: Requests | None = None
        self._is_resumed = True
        self._expected: tuple[str | None, str] = (None, "")
        self._passed: set[str] = set()

    def tables(self) -> Sequence[SourceTable]:
        return [self._table.table()]

    def read(self, cursor: JsonObject | None) -> SourcePage:
        page = self._whole_list(cursor or {}) if self._mark is None else self._behind_mark(cursor or {})
        self._is_resumed = False
        return page

    def check(self) -> Sequence[CheckFinding]:
        """Asks for the first page, and looks whether its items fit."""
        try:
            items = self._page(self._paging.begin(self._parameters(None))).items
            shape = TableShape("http", self._table.table())
            for item in items:
                shape.row(self._table.row(self._table.raw(item)))
            if self._mark is not None:
                behind(Marks(), self._marked(items))
        except CdcError as error:
            field = f": {error.where['field']}" if "field" in error.where else ""
            key, text = str(error.where.get("key", "http.fields" if field else "http.url")), error.message + field
            return [CheckFinding(key, "warning" if error.retriable else "error", error.code, text, error.hint)]
        fields = ",".join(proposed(items))
        if self._config["http.fields"] or not fields or len(fields) > PROPOSAL_CHARS_MAX:
            return []
        text = f"by the {len(items)} items of the first page: http.fields={fields}"
        return [CheckFinding("http.fields", "note", FIELDS_PROPOSED, text)]

    def close(self) -> None:
        if self._requests is not None:
            self._requests.close()

    # -- behind a mark ------------------------------------------------------------------------------------------------

    def _behind_mark(self, cursor: JsonObject) -> SourcePage:
        marks, page = self._stored(cursor)
        target = page or self._paging.begin(self._parameters(marks.since))
        answer = self._asked.get(target)
        if page and self._is_resumed and answer.status in GONE:
            log.warning("the server knows no more of the page, the round begins again status=%d", answer.status)
            marks = marks.again()
            target = self._paging.begin(self._parameters(marks.since))
            answer = self._asked.get(target)
        read = self._read(target, answer)
        marks, news = behind(marks, self._marked(read.items))
        rows = [self._table.raw(item) for item, is_news in zip(read.items, news, strict=True) if is_news]
        records = [SourceRecord(self._table.name, self._table.row(raw)) for raw in rows]
        state = (marks if read.next else marks.ended()).stored()
        if read.next:
            state |= {"page": read.next, "of": self._request_mark()}
        return SourcePage(records, state, more=read.next is not None)

    def _stored(self, cursor: JsonObject) -> tuple[Marks, str | None]:
        """Returns the marks and the page of a cursor. The page of a config that asked for something else is not gone on with."""
        try:
            marks, page = marks_of(cursor), cursor.get("page")
            if page is None:
                return marks, None
            is_same = cursor.get("of") == self._request_mark() and self._paging.continues(judged(page))
            return (marks, page) if is_same else (marks.again(), None)
        except (ValueError, TypeError):
            raise Misconfigured(
                "the stored position is not one of this source: reset the connector's offsets"
            ) from None

    def _marked(self, items: Sequence[Any]) -> Sequence[tuple[Any, str]]:
        assert self._mark is not None
        values = [value_at(item, self._mark) for item in items]
        return [(value, digest([value, self._table.raw(item)])) for value, item in zip(values, items, strict=True)]

    def _parameters(self, since: Any) -> Mapping[str, str]:
        name = self._config["http.cursor.parameter"]
        value = self._config["http.cursor.initial"] if since is None else since
        if not name or value is None:
            return {}
        return {name: value if isinstance(value, str) else json.dumps(value)}

    def _request_mark(self) -> str:
        names = (
            "http.url",
            "http.cursor.parameter",
            "http.page.parameter",
            "http.pagination",
            "http.page.size.parameter",
        )
        return digest([self._config[name] for name in names])

    # -- a whole list -------------------------------------------------------------------------------------------------

    def _whole_list(self, cursor: JsonObject) -> SourcePage:
        known = cursor.get("rows")
        if known is not None and not isinstance(known, dict):
            raise Misconfigured("the stored position is not one of this source: reset the connector's offsets")
        items: list[Any] = []
        target: str | None = self._paging.begin({})
        deadline = time.monotonic() + LIST_S_MAX
        while target is not None:
            read = self._page(target)
            items += read.items
            target = read.next
            if len(items) > LIST_ROWS_MAX or time.monotonic() > deadline:
                text = f"the list has more than {LIST_ROWS_MAX} items, or takes longer than {LIST_S_MAX:.0f} s to read"
                raise CdcError(LIST_TOO_LONG, text, where={"key": "http.cursor.field"})
            if self._place.stopping():
                return SourcePage([], cursor)
        rows, records = changes_of_list(self._table, known, items)
        if is_too_long(rows):
            text = f"keys and digests of the list have more than {LIST_BYTES_MAX} bytes"
            raise CdcError(LIST_TOO_LONG, text, where={"key": "http.cursor.field"})
        return SourcePage(records, {"rows": dict(rows)})

    # -- pages --------------------------------------------------------------------------------------------------------

    @property
    def _asked(self) -> Requests:
        if self._requests is None:
            self._requests = Requests(self._place)
        return self._requests

    def _page(self, target: str) -> _Read:
        return self._read(target, self._asked.get(target))

    def _read(self, target: str, answer: Answer) -> _Read:
        body = self._asked.body(answer)
        items = value_at(body, self._items)
        if not isinstance(items, list):
            raise CdcError(ANSWER_UNEXPECTED, "there is no array of items", where={"key": "http.items.pointer"})
        try:
            following = self._paging.following(target, answer.headers, body, len(items))
        except ElsewhereError as error:
            raise CdcError(OTHER_SERVER, str(error)) from None
        except ValueError as error:
            raise CdcError(ANSWER_UNEXPECTED, str(error), where={"key": "http.pagination"}) from None
        self._require_progress(target, items, following)
        return _Read(items, following)

    def _require_progress(self, target: str, items: Sequence[Any], following: str | None) -> None:
        """A server that does not know the parameter of pages answers with the first one for ever, and one whose pages name each other
        leads in a circle."""
        now = digest(items) if self._paging.kind in COUNTED else ""
        if now and items and (target, now) == self._expected:
            text = "two pages hold the same items: the server does not know the parameter of pages"
            raise CdcError(ANSWER_UNEXPECTED, text, where={"key": "http.page.parameter"})
        self._expected = (following, now)
        mark = digest(target)
        if following is None or mark in self._passed or len(self._passed) >= PASSED_MAX:
            # The round has ended, or the page is read once more, since what followed could not be written.
            self._passed.clear()
        if following is None:
            return
        self._passed.add(mark)
        if digest(following) in self._passed:
            text = "the pages lead in a circle: the next one is one that was read"
            raise CdcError(ANSWER_UNEXPECTED, text, where={"key": "http.pagination"})

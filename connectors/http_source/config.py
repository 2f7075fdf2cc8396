"""The keys of the source of a JSON API. Names are those of the sink into a web service where both have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cdcworker.connectors.api.kit import ConfigKey, between, matches, one_of
from cdcworker.connectors.http_source.items import TYPES, name_problem, parse_fields
from cdcworker.connectors.http_source.pages import COUNTED, KINDS, PARAMETERS
from cdcworker.connectors.http_source.pointers import pointer_problem
from cdcworker.connectors.network.http_keys import (
    additional_headers,
    address_problem,
    login_checks,
    login_keys,
    timeout_keys,
)
from cdcworker.connectors.network.http_statuses import RETRIED, ranges_problem
from cdcworker.connectors.network.tls import tls_checks, tls_keys

_PARAMETER: Final = matches(r"[A-Za-z0-9._~\[\]$:-]{1,100}", "the name of a parameter")


def _url(value: str) -> str | None:
    return "expects an address without #" if "#" in value else address_problem(value)


def _fields(value: list[str]) -> str | None:
    try:
        parse_fields(value)
    except ValueError as problem:
        return str(problem)
    return None


def _names(value: list[str]) -> str | None:
    return (
        "names a field twice" if len(set(value)) != len(value) else next(filter(None, map(name_problem, value)), None)
    )


def _member(value: str) -> str | None:
    return pointer_problem(value) if value.startswith("/") else None


def _request_keys() -> Iterable[ConfigKey]:
    group = "Requests"
    yield ConfigKey(
        "http.url", required=True, importance="HIGH", group=group, validator=_url, connects=True,
        doc="The address that is asked with GET, with the parameters that every request has. Redirects are not followed.",
    )  # fmt: skip
    yield additional_headers(group)
    yield from timeout_keys(", up to 30 s in all", group)
    yield ConfigKey(
        "http.answer.bytes.max", "INT", 16_777_216, group=group, validator=between(1_024, 268_435_456), connects=False,
        doc="The largest answer that is taken. All of its items are one Kafka transaction.",
    )  # fmt: skip
    yield ConfigKey(
        "retry.on.status.codes", default=RETRIED, group=group, validator=ranges_problem,
        doc="Statuses after which the server is asked again, after Retry-After where it says so: numbers and ranges (`500-599`, `500-`)."
        " Others from 300 on halt the task.",
    )  # fmt: skip


def _item_keys() -> Iterable[ConfigKey]:
    group = "Items"
    yield ConfigKey(
        "http.table", required=True, importance="HIGH", group=group, topics="part",
        validator=matches(r"[A-Za-z_][A-Za-z0-9_-]{0,99}", "letters, digits, _ and -"),
        doc="The name of the table; its topic is `<topic.prefix>.http.<table>`.",
    )  # fmt: skip
    yield ConfigKey(
        "http.items.pointer", default="", importance="HIGH", group=group, validator=pointer_problem,
        doc="JSON pointer to the array of items in an answer, such as /data/items. Empty: the answer is the array.",
    )  # fmt: skip
    yield ConfigKey(
        "http.key", "LIST", importance="HIGH", group=group, validator=_names,
        doc="The fields that tell items apart. Without http.fields they are members of the item, and text in the row.",
    )  # fmt: skip
    yield ConfigKey(
        "http.fields", "LIST", importance="HIGH", group=group, validator=_fields,
        doc="The fields of a row, as name:type or name:type:pointer, such as `id:int64,customer:string:/customer/name`. Types are"
        f" {', '.join(TYPES)}. Without it a row has the key as text, and the whole item as JSON in `item`. The live check of a config"
        " proposes fields by the items of the first page.",
    )  # fmt: skip


def _cursor_keys() -> Iterable[ConfigKey]:
    group = "Cursor"
    yield ConfigKey(
        "http.cursor.field", importance="HIGH", group=group, validator=_member,
        doc="The member of an item, or a JSON pointer to it, that rises with each change, such as updated_at: a number, a time with a zone,"
        " or a text. Without it the whole list is read each time, and changed, new and gone items are told apart by http.key.",
    )  # fmt: skip
    yield ConfigKey(
        "http.cursor.parameter", group=group, validator=_PARAMETER,
        doc="The parameter of a request that takes the highest value so far.",
    )  # fmt: skip
    yield ConfigKey(
        "http.cursor.initial", group=group, doc="What the parameter has before any item was read. Default: it is left out.",
    )  # fmt: skip


def _page_keys() -> Iterable[ConfigKey]:
    group = "Pages"
    yield ConfigKey(
        "http.pagination", default="none", group=group, validator=one_of(*KINDS), recommended=KINDS, importance="HIGH",
        doc="How the next page is asked for: by the header Link (link), an address in the answer (next), a number (page), the count of"
        " items before it (offset), or a token in the answer (cursor).",
    )  # fmt: skip
    yield ConfigKey(
        "http.next.pointer", group=group, validator=pointer_problem,
        doc="JSON pointer to the address (next) or the token (cursor) of the next page. Null, empty or missing: it was the last.",
    )  # fmt: skip
    yield ConfigKey(
        "http.page.parameter", group=group, validator=_PARAMETER,
        doc="The parameter that takes the number, the offset or the token. Default: `page`, `offset` or `cursor`.",
    )  # fmt: skip
    yield ConfigKey(
        "http.page.first", "INT", group=group, validator=between(0, 1), doc="The number of the first page, 0 or 1. Default: 1.",
    )  # fmt: skip
    yield ConfigKey(
        "http.page.size", "INT", group=group, validator=between(1, 100_000),
        doc="How many items a page has: with page and offset one with fewer is the last. Without it an empty one is.",
    )  # fmt: skip
    yield ConfigKey(
        "http.page.size.parameter", group=group, validator=_PARAMETER, doc="The parameter that takes http.page.size.",
    )  # fmt: skip


def check(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yields keys with what is wrong with them together."""
    yield from _item_checks(config)
    yield from _page_checks(config)
    yield from login_checks(config)
    is_plain = config["http.url"].startswith("http://")
    yield from tls_checks(config, "http.ssl.", "an http.url that begins with http://" if is_plain else "")


def _item_checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    declared = {field.name: field for field in parse_fields(config["http.fields"] or ())}
    key = config["http.key"] or ()
    if declared and not set(key) <= declared.keys():
        yield "http.key", "names a field that http.fields does not have"
    elif not declared and "item" in key:
        yield "http.key", "names the field that holds the whole item: declare http.fields"
    if not config["http.cursor.field"]:
        if not key:
            yield "http.key", "is needed without http.cursor.field: items of a list are told apart by it"
        for name in ("http.cursor.parameter", "http.cursor.initial"):
            if config[name]:
                yield name, "has no meaning without http.cursor.field"
    elif config["http.cursor.initial"] and not config["http.cursor.parameter"]:
        yield "http.cursor.initial", "has no meaning without http.cursor.parameter"


def _page_checks(config: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    kind = config["http.pagination"]
    if kind in ("next", "cursor") and not config["http.next.pointer"]:
        yield "http.next.pointer", f"is needed with http.pagination={kind}"
    meanings = {
        "http.next.pointer": ("next", "cursor"),
        "http.page.parameter": tuple(PARAMETERS),
        "http.page.first": ("page",),
    }
    for name, kinds in meanings.items():
        if config[name] is not None and kind not in kinds:
            yield name, f"has no meaning with http.pagination={kind}"
    if config["http.page.size.parameter"] and config["http.page.size"] is None:
        yield "http.page.size.parameter", "needs http.page.size"
    elif config["http.page.size"] is not None and kind not in COUNTED and not config["http.page.size.parameter"]:
        yield "http.page.size", "needs http.page.size.parameter"
    used = [config[name] for name in ("http.cursor.parameter", "http.page.size.parameter") if config[name]]
    if kind in PARAMETERS:
        used.append(config["http.page.parameter"] or PARAMETERS[kind])
    if len(set(used)) != len(used):
        yield "http.page.parameter", "is the parameter of another key as well"


KEYS: Final = (
    *_request_keys(),
    *_item_keys(),
    *_cursor_keys(),
    *_page_keys(),
    *login_keys(),
    *tls_keys("http.ssl."),
)

"""The source of a JSON API against a server: pages, positions, answers of every kind, secrets."""

from __future__ import annotations

import json

import pytest
from cdcworker.connectors.api.context import TaskContext
from cdcworker.connectors.api.kit import SourcePlace
from cdcworker.connectors.http_source.connector import HttpSource
from cdcworker.connectors.http_source.source import HttpItems
from cdcworker.schemas.errors import CdcError

from tests.contract.json_api import ApiHarness, JsonApi

SECRET = "s3cret-token"
OPENED = []


@pytest.fixture
def api():
    made = ApiHarness("link", page=3)
    yield made
    for source in OPENED:
        source.close()
    OPENED.clear()
    made.close()


def opened(api, **more):
    given = {name.replace("__", "."): value for name, value in more.items()}
    config = {"connector.class": "http", "topic.prefix": "p", **api.config, **given}
    OPENED.append(
        HttpItems(SourcePlace(HttpSource.config_def.parse({k: v for k, v in config.items() if v is not None})))
    )
    return OPENED[-1]


def read_all(source, cursor=None):
    """Returns the rows up to where there is no more, and the cursor."""
    out = []
    while True:
        page = source.read(cursor)
        cursor = json.loads(json.dumps(page.cursor))
        out += page.records
        if not page.more:
            return out, cursor


@pytest.mark.parametrize(
    ("pages", "config"),
    [
        ("none", {}), ("link", {}), ("next", {"http.next.pointer": "/next"}), ("page", {}), ("page", {"http.page.size": "3", "http.page.size.parameter": "n"}),
        ("offset", {}), ("cursor", {"http.next.pointer": "/next", "http.page.parameter": "offset"}),
    ],
)  # fmt: skip
def test_every_way_of_pages_brings_each_item_once(api, pages, config):
    api.pages = pages
    api.write(7)
    source = opened(api, **{"http.pagination": pages, **config})
    records, cursor = read_all(source)
    assert [each.row["id"] for each in records] == [1, 2, 3, 4, 5, 6, 7]
    api.write(1)
    api.items[0]["at"] = api.items[0]["id"] = 8
    again = opened(api, **{"http.pagination": pages, **config})
    records, cursor = read_all(again, cursor)
    assert sorted(each.row["id"] for each in records) == [8, 8], "the changed one and the new one"
    assert "since=7" in api.asked[-1][0]
    assert "kind=all" in api.asked[-1][0]
    assert read_all(again, cursor) == ([], cursor)


def test_a_restart_within_a_round_goes_on_with_its_page(api):
    api.write(7)
    first = opened(api).read(None)
    records, _ = read_all(opened(api), first.cursor)
    assert [each.row["id"] for each in (*first.records, *records)] == [1, 2, 3, 4, 5, 6, 7]
    api.answers += [(503, {}, b""), (410, {}, b"")]
    source = opened(api)
    with pytest.raises(CdcError):
        source.read(first.cursor)
    records, _ = read_all(source, first.cursor)
    assert [each.row["id"] for each in records] == [1, 2, 3, 4, 5, 6, 7], "from the begin, where the page is gone"
    records, _ = read_all(opened(api, http__cursor__parameter="from"), first.cursor)
    assert len(records) == 7, "a page of another request is not gone on with"


def test_a_list_without_a_cursor_brings_what_has_changed_and_what_is_gone(api):
    api.write(7)
    none = {"http__cursor__field": None, "http__cursor__parameter": None}
    records, cursor = read_all(opened(api, **none))
    assert [each.op for each in records] == ["r"] * 7
    api.items[1]["who"] = {"name": "other"}
    del api.items[4]
    api.write_text("new")
    api.items[-1]["id"] = 99
    records, cursor = read_all(opened(api, **none), cursor)
    assert [(each.op, each.row["id"]) for each in records] == [("u", 2), ("c", 99), ("d", 5)]
    assert read_all(opened(api, **none), cursor) == ([], cursor)
    api.write(6_000)
    api.page = 10_000
    with pytest.raises(CdcError) as caught:
        opened(api, **none).read(cursor)
    assert caught.value.code == "http.list_too_long"


def items(*found):
    return json.dumps({"data": {"items": found}}).encode()


ITEM = {"id": 1, "who": {"name": SECRET}, "at": 1}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((503, {}, b""), "plugin.unavailable"),
        ((408, {}, b""), "plugin.unavailable"),
        ((401, {}, SECRET.encode()), "http.refused"),
        ((404, {}, b""), "http.refused"),
        ((302, {"Location": "http://evil.example/"}, b""), "http.refused"),
        ((200, {}, b"<html>"), "http.answer_unexpected"),
        ((200, {}, b'{"data": {"items": [NaN]}}'), "http.answer_unexpected"),
        ((200, {}, b"[" * 4_000), "http.answer_unexpected"),
        ((200, {}, b'{"data": {"items": {}}}'), "http.answer_unexpected"),
        ((200, {}, b" " * 5_000), "http.answer_too_large"),
        ((200, {"Content-Length": "4000", "Connection": "close"}, b"{}"), "plugin.unavailable"),
        ((200, {"Link": "<http://evil.example/>; rel=next"}, items()), "http.other_server"),
        ((200, {"Link": "<?kind=all>; rel=next"}, items()), "http.answer_unexpected"),
        ((200, {}, items({**ITEM, "at": None})), "plugin.record_refused"),
    ],
)  # fmt: skip
def test_answers_that_are_none(api, answer, code):
    api.answers.append(answer)
    source = opened(api, http__answer__bytes__max="4096", http__request__timeout__ms="1000")
    with pytest.raises(CdcError) as caught:
        source.read(None)
    assert caught.value.code == code
    assert SECRET not in json.dumps(caught.value.to_dict())
    assert len(api.asked) == 1, "nothing is followed"
    source.close()


def test_it_waits_as_long_as_the_server_says(api):
    for status, text in ((429, "7"), (503, "Wed, 21 Oct 2015 07:28:10 GMT")):
        api.answers.append((status, {"Retry-After": text}, b""))
        with pytest.raises(CdcError) as caught:
            opened(api).read(None)
        assert caught.value.retry_after_s == (7 if status == 429 else 0)


def test_a_server_that_knows_no_pages_is_told(api):
    api.pages = "none"
    api.write(2)
    source = opened(api, http__pagination="page")
    first = source.read(None)
    with pytest.raises(CdcError) as caught:
        source.read(first.cursor)
    assert (caught.value.code, caught.value.where) == ("http.answer_unexpected", {"key": "http.page.parameter"})


@pytest.mark.parametrize("config", [{}, {"http__cursor__field": None, "http__cursor__parameter": None}])
def test_pages_that_lead_in_a_circle_are_told(api, config):
    api.answers += [(200, {"Link": f"<?kind=all&at={at}>; rel=next"}, items()) for at in (1, 2, 1, 2)]
    with pytest.raises(CdcError) as caught:
        read_all(opened(api, **config))
    assert (caught.value.code, caught.value.where) == ("http.answer_unexpected", {"key": "http.pagination"})
    assert len(api.asked) == 3


def test_a_page_is_read_again_where_what_followed_was_not_written(api):
    api.write(7)
    source = opened(api)
    first = source.read(None)
    for _ in range(2):
        assert source.read(first.cursor).more
    assert len(read_all(source, first.cursor)[0]) == 4
    assert len(read_all(source)[0]) == 7


@pytest.mark.parametrize("page", ["/?n=3", "/?page=x&n=3", "/?page=2", "/?page=2&n=7"])
def test_a_page_that_is_counted_in_another_way_is_not_gone_on_with(api, page):
    api.pages = "page"
    api.write(7)
    config = {"http__pagination": "page", "http__page__size": "3", "http__page__size__parameter": "n"}
    first = opened(api, **config).read(None)
    records, _ = read_all(opened(api, **config), {**first.cursor, "page": page})
    assert len(records) == 7


@pytest.mark.parametrize("kind", ["string", "int64", "float64", "timestamp", "json", "boolean"])
def test_a_number_that_no_double_holds_is_refused(api, kind):
    api.answers.append((200, {}, b'{"data": {"items": [{"id": 1, "at": 1, "n": -1e999}]}}'))
    config = {
        "connector.class": "http",
        "topic.prefix": "p",
        **api.config,
        "http.fields": f"id:int64,at:int64,n:{kind}",
    }
    config["http.key"] = "id"
    task = HttpSource(config).task(config, TaskContext("c", 0, 1, "i", ""))
    task.open(None)
    with pytest.raises(CdcError) as caught:
        task.poll()
    assert (caught.value.code, caught.value.where["field"]) == ("plugin.record_refused", "n")
    task.close()


def test_logins_and_headers(api):
    for config, wanted in (
        (
            {"http.authorization.type": "bearer", "http.authorization.token": SECRET},
            ("authorization", f"Bearer {SECRET}"),
        ),
        (
            {"http.authorization.type": "basic", "http.authorization.user": "u", "http.authorization.password": "p"},
            ("authorization", "Basic dTpw"),
        ),
        ({"http.headers.additional": f"X-Api-Key: {SECRET}, Accept: text/x"}, ("x-api-key", SECRET)),
    ):
        opened(api, **config).read(None)
        assert api.asked[-1][1][wanted[0]] == wanted[1]
    assert api.asked[-1][1]["accept"] == "text/x"
    names = (
        "http.authorization.token",
        "http.authorization.password",
        "http.headers.additional",
        "http.headers.authorization",
    )
    assert set(HttpSource.config_def.mask(dict.fromkeys(names, SECRET)).values()) == {"****"}


def checked(api, **more):
    config = {"connector.class": "http", "topic.prefix": "p", **api.config, **more}
    return [(each.key, each.severity, each.code) for each in HttpSource(config).check()]


def test_the_live_check_asks_for_the_first_page(api):
    api.write(2)
    assert checked(api) == []
    assert checked(api, **{"http.fields": "id:boolean"}) == [("http.fields", "error", "plugin.record_refused")]
    assert checked(api, **{"http.items.pointer": "/x"}) == [("http.items.pointer", "error", "http.answer_unexpected")]
    api.is_away = True
    assert checked(api) == [("http.url", "warning", "plugin.unavailable")]
    api.is_away = False
    config = {name: value for name, value in api.config.items() if name != "http.fields"}
    (found,) = HttpSource({"connector.class": "http", "topic.prefix": "p", **config}).check()
    assert found.message == "by the 2 items of the first page: http.fields=id:int64,who:json,at:int64,extra:json"


def test_an_item_that_does_not_fit_halts_the_task_and_is_not_shown(api):
    api.items.append({"id": SECRET, "at": 1, "who": {}})
    task = HttpSource({"connector.class": "http", "topic.prefix": "p", **api.config}).task(
        {"connector.class": "http", "topic.prefix": "p", **api.config}, TaskContext("c", 0, 1, "i", "")
    )
    task.open(None)
    with pytest.raises(CdcError) as caught:
        task.poll()
    assert (caught.value.code, caught.value.where) == ("plugin.record_refused", {"table": "http.orders", "field": "id"})
    assert SECRET not in str(caught.value.to_dict())
    task.close()


@pytest.mark.parametrize("cursor", [{"seen": 7}, {"edge": "x"}, {"page": 7}, {"since": 1, "page": "//a\r\nb"}])
def test_a_cursor_of_another_kind_is_refused(api, cursor):
    source = opened(api)
    with pytest.raises(CdcError) as caught:
        source.read({**cursor, "of": source._request_mark()})
    assert caught.value.code == "plugin.misconfigured"
    assert api.asked == []


def test_a_server_that_is_not_there(api):
    JsonApi.close(api)
    with pytest.raises(CdcError) as caught:
        opened(api).read(None)
    assert caught.value.code == "plugin.unavailable"
    api.server = JsonApi().server

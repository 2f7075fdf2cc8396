"""Expressions over records: what they name, what they mean, and what is refused with what to write."""

from contextlib import suppress

import pytest
from cdcworker.connectors.transforms.conditions.expression import Expression, problem
from cdcworker.connectors.transforms.conditions.expression_text import TEXT_MAX, rewritten
from cdcworker.connectors.transforms.conditions.field_paths import VARIABLE_SCALE
from cdcworker.connectors.transforms.data import DECIMAL, ConnectRecord, ConnectSchema, DataError, Header, struct
from hypothesis import given
from hypothesis import strategies as st

ROW = struct(
    ("id", ConnectSchema("int32")),
    ("name", ConnectSchema("string", optional=True)),
    ("price", ConnectSchema("bytes", optional=True, name=DECIMAL, parameters={"scale": "2"})),
    ("rate", ConnectSchema("float64", optional=True)),
    ("paid", ConnectSchema("boolean", optional=True)),
    ("tags", ConnectSchema("array", optional=True, value_schema=ConnectSchema("string"))),
    ("unit price", ConnectSchema("int32", optional=True)),
    optional=True,
)
SCHEMA = struct(("op", ConnectSchema("string")), ("before", ROW), ("after", ROW), name="shop.Envelope")
KEY = struct(("id", ConnectSchema("int32")))
AFTER = {
    "id": 3,
    "name": "canary",
    "price": b"\x01\x2c",
    "rate": 0.5,
    "paid": True,
    "tags": ["a", "b"],
    "unit price": 7,
}


def record(op="u", after=AFTER, before=None, **more):
    value = {"op": op, "before": before, "after": after}
    return ConnectRecord("shop.public.orders", KEY, {"id": 3}, SCHEMA, value, **more)


HEADERS = (Header("tenant", None, b"acme"), Header("number", ConnectSchema("int32"), 5), Header("none", None, None))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("value.op == 'u' && value.after.id > 2", True),
        ("value.op == 'u' ? 'updates' : null", "updates"),
        ("value.op == 'd' ? 'deletes' : null", None),
        ("value['after']['unit price'] + 1", 8), ('value.after["id"] == key.id', True),
        ("value.after.price == 3.0", True), ("value.after.rate * 2.0", 1.0), ("value.after.paid", True), ("!value.after.paid", False),
        ("value.after.name.startsWith('can') && value.after.name.size() == 6", True),
        ("value.after.name.matches('^c.*y$')", True),
        ("'b' in value.after.tags && size(value.after.tags) == 2", True),
        ("value.after.tags.exists(t, t == 'a')", True), ("value.after.id in [1, 2, 3]", True),
        ("value.before == null", True), ("value.before.id == 2", False), ("value.before.id == null", True),
        ("has(value.before.id)", False), ("has(value.after.id) && !has(value.after.other)", True),
        ("topic == 'shop.public.orders'", True), ("topic.endsWith('orders')", True),
        ("headers['tenant'] == 'acme' && headers.number == '5'", True), ("header.tenant.value == 'acme'", True),
        ("header.number.value == 5 && header.number.value > 4 && header.none.value == null", True),
        ("has(headers.tenant) && !has(headers.absent)", True), ("headers.absent == null && headers.none == null", True),
        ("value.after.name == 'it''s' || value.after.name == \"x\\\"y\" || 'value.op' == 'value.op'", True),
        ("1.5e-3 < 2e+1 && 1u == 1u", True), ("value . after . id == 3", True),
    ],
)  # fmt: skip
def test_what_expressions_mean(text, value):
    if "it''s" in text:
        text = text.replace("'it''s'", "'it\\'s'")
    found = Expression(text, "cel").evaluate(record(headers=HEADERS))
    assert found == value
    assert type(found) is type(value)


def test_only_the_fields_that_are_named_are_read():
    found = rewritten(
        "value.op == 'u' && has(value.after.id) && value.after.name.contains('value.x') && value.op != ''", "cel"
    )
    assert {(path.names, path.is_asked) for path in found.paths.values()} == {
        (("value", "op"), False),
        (("value", "after", "id"), True),
        (("value", "after", "name"), False),
    }
    assert "'value.x'" in found.text


@pytest.mark.parametrize(
    "text",
    [
        "value.op == 'u' && value.after.id > 2",
        "value.before?.id == 2 || value.op in ['c', 'r']",
        "value.op == 'u' ? 'updates' : null",
        "value.after.name.startsWith('can') && !value.after.name.contains('x') && value.after.tags.size() > 1",
        'header.tenant.value == "acme"',
        "value.after.id > -1 && -1 in [-1] && value.after.id % 2 == 1 && (value.op == 'u') == true",
        "value.op == 'u' ? 'orders-' + headers.tenant + '-all' : null",
    ],
)
def test_common_conditions_in_groovy_run_as_they_are(text):
    both = [Expression(text.replace("?.", "."), "cel"), Expression(text, "groovy")]
    assert len({repr(each.evaluate(record(headers=HEADERS))) for each in both}) == 1
    assert problem(text, "groovy") is None


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("value.after.name ==~ /c.*/", "has the operator ==~; CEL has matches('^(?:…)$') for it; write it in CEL"),
        ("value.after.name.matches('c')", "calls matches, which may mean something else in CEL; write it in CEL with language=cel"),
        ("value.after.name.equals('c')", "calls equals"), ("value.get('op') == 'u'", "calls get"), ("foo(1)", "calls foo"),
        ("value.after.name == \"${x}\"", 'has a text with $ between "'), ("value.x ?: 1", "has ?:, which CEL does not have"),
        ("def x = 1; x > 0", "has def"), ("x -> x", "has ->"), ("return true", "has return"),
        ("value.after.id / 2 == 1.5", "computes with /"), ("value.after.price * 100.0 == 29.0", "computes with *"),
        ("value.after.price + 0.1 == 0.3", "computes with +"), ("value.after.price - 0.1 == 0.2", "computes with -"),
        ("value.after.id == 010", "has a number that is written otherwise in CEL"), ("value.after.id == 3u", "has a number"),
        ("r'a' == value.op", "has a letter before a text"),
        ("value.after.paid == value.op in ['u']", "compares the result of a comparison without brackets"),
    ],
)  # fmt: skip
def test_what_groovy_alone_has_is_refused_with_what_to_write(text, advice):
    assert advice in (problem(text, "groovy") or "")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "is empty"), ("  ", "is empty"), ("value.op ==", "is no expression of CEL"), ("(" * 4000, "is no expression of CEL"),
        ("other.op == 'u'", "names other; expects value, key, topic and headers"), ("valueSchema.name == 'x'", "names valueSchema"),
        ("frobnicate(value.op)", "calls frobnicate"), ("value.op.toLowerCase() == 'u'", "calls toLowerCase"),
        ("value.op == 'u' # x", "has a character that belongs to no expression at 17"), ("'open", "belongs to no expression at 1"),
        ("value.after.tags.exists(value, value.op == 'u')", "names the items of a list value, as a part of the record is named"),
        ("[1].exists(a, [1].all(b, [1].exists(c, a == b)))", "has more than 2 macros inside of each other"),
        ("[['a'].map(x, x + x)[0]].map(x, x + x)[0] == 'aaaa'", "has more than one map"),
        ("_0 == 1", "has a name that begins with _"), ("x" * (TEXT_MAX + 1), f"is longer than {TEXT_MAX} characters"),
    ],
)  # fmt: skip
def test_what_is_no_expression_is_refused(text, advice):
    assert advice in (problem(text, "cel") or "")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("value.after.nam == 'x'", "Unknown field: nam in value.after"), ("key.other == 1", "Unknown field: other in key"),
        ("value.after.id.x == 1", "Unknown field: x in value.after.id"), ("topic.x == 'a'", "topic is a text"),
        ("headers == null", "a header is named as headers"), ("value.before.id > 2", "types that it cannot"),
        ("value.after.name > 2", "types that it cannot"), ("value.after.id / 0 == 1", "divides by zero"),
        ("int(value.after.name) == 1", "no value for this record"), ("value.after.tags[7] == 'a'", "no value for this record"),
    ],
)  # fmt: skip
def test_an_expression_without_a_value_is_told_without_the_record_s(text, error):
    with pytest.raises(DataError) as failed:
        Expression(text, "cel").evaluate(record())
    assert error in str(failed.value)
    assert "canary" not in str(failed.value)
    assert failed.value.__suppress_context__ or failed.value.__context__ is None


def test_a_record_without_a_schema_is_read_by_its_names():
    found = Expression("value.a.b == 1 && !has(value.c)", "cel")
    assert found.evaluate(ConnectRecord("t", value={"a": {"b": 1}})) is True
    assert found.evaluate(ConnectRecord("t", value=None)) is False


def test_a_record_without_a_schema_whose_field_has_no_fields_is_an_error_of_its_own():
    with pytest.raises(DataError, match="leads through a value without fields") as failed:
        Expression("value.a.b == 1", "cel").evaluate(ConnectRecord("t", value={"a": "canary"}))
    assert "canary" not in str(failed.value)


def test_decimals_of_each_form_are_numbers():
    fixed = ConnectSchema("bytes", optional=True, name=DECIMAL, parameters={"scale": "1"})
    free = struct(("scale", ConnectSchema("int32")), ("value", ConnectSchema("bytes")), name=VARIABLE_SCALE)
    row = struct(("fixed", fixed), ("free", free), ("many", ConnectSchema("array", value_schema=fixed)))

    def told(text, **fields):
        return Expression(text, "cel").evaluate(ConnectRecord("t", value_schema=row, value=fields))

    assert told("value.free == 1.5 && value.free > 1", free={"scale": 1, "value": b"\x0f"})
    assert told("1.5 in value.many && value.many.exists(one, one == null)", many=[b"\x0f", None])
    assert told("value.fixed == 0.0", fixed=b"") is False
    assert told("value.free > 1e300", free={"scale": 1, "value": b""})
    assert told("value.free.scale == 1", free={"scale": 1, "value": b"\x0f"})


def test_each_structure_has_its_own_readers():
    found = Expression("value.id", "cel")
    scaled = {scale: ConnectSchema("bytes", name=DECIMAL, parameters={"scale": scale}) for scale in ("0", "1")}
    told = [
        found.evaluate(ConnectRecord("t", value_schema=struct(("id", of)), value={"id": b"\x0f"}))
        for of in scaled.values()
    ]
    assert told == [15.0, 1.5]


@given(st.text(alphabet="value.op key'\"[]()=&|!<>?: 12x_\\\n", max_size=40) | st.text(max_size=20))
def test_no_text_does_harm(text):
    """It is an expression, or it is told why not; a record gives it a value, or an error of ours."""
    for language in ("cel", "groovy"):
        if problem(text, language) is None:
            with suppress(DataError):
                Expression(text, language).evaluate(record())

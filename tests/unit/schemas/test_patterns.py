"""Users' expressions mean what Python's `re` says, whichever engine matches them."""

import pickle
import re
import string

import pytest
from cdcworker.schemas import patterns
from cdcworker.schemas.errors import CdcError
from cdcworker.schemas.patterns import compiled
from cdcworker.schemas.untrusted import linear_match
from cdcworker.schemas.untrusted.linear_match import BadPattern, Matching, TooManySteps, program_of
from hypothesis import given
from hypothesis import strategies as st

CHARS = "abAB_1. \n-éÉſK\u0661"
ATOMS = st.one_of(
    st.sampled_from([r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", ".", r"\.", r"\b", r"\B", "^", "$", r"\A", r"\Z"]),
    st.sampled_from([*"abAB_1é", "ſ", "K", "\u0661", r"\x61", r"\u0062", r"\141"]),
    st.sampled_from(["[ab]", "[^a]", r"[\w.]", r"[^\W_]", "[a-z]", "[A-b]", "[]a]", "[^]a]", r"[\d\-é]"]),
)
LOOKS = st.sampled_from(["(?={})", "(?!{})", "(?>{})"])


def _larger(inner):
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        inner.map(lambda text: f"({text})"),
        st.tuples(st.sampled_from(["i", "s", "m", "a", "i-s"]), inner).map(lambda pair: f"(?{pair[0]}:{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,2}?", "{,2}", "++", "?+"]))
        .map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        st.tuples(LOOKS, inner).map(lambda pair: pair[0].format(pair[1])),
        st.sampled_from(["(?<=a)", "(?<!ab)", "(?<=[a-b].)", r"(?<!\b)", "(?!)"]),
    )  # fmt: skip


EXPRESSIONS = st.recursive(ATOMS, _larger, max_leaves=8)
TEXTS = st.text(CHARS, max_size=6)


@given(EXPRESSIONS, TEXTS, st.booleans())
def test_an_expression_takes_what_it_takes_in_re(expression, text, ignore_case):
    expected = re.fullmatch(expression, text, re.I if ignore_case else 0)
    assert (compiled(expression, ignore_case=ignore_case).fullmatch(text) is not None) == (expected is not None)


@given(EXPRESSIONS, TEXTS)
def test_both_engines_take_the_same(expression, text):
    pattern = compiled(expression)
    found = Matching(text, pattern.groups).whole(program_of(pattern.expression))
    assert (found is not None) == (re.fullmatch(expression, text) is not None)


SIMPLE = st.lists(
    st.sampled_from(["(a|ab)", "(b*)", "(c|bcd)?", r"(.*)\.", "([a-c]+?)", r"(\w+)", "(?:(d)|e)?", "(.)"]), max_size=4
).map("".join)


@given(SIMPLE, st.text("abcd.", max_size=8), st.booleans())
def test_groups_hold_what_they_hold_in_re(expression, text, counted):
    pattern, expected = compiled(expression), re.fullmatch(expression, text)
    if counted:
        spans = Matching(text, pattern.groups).whole(program_of(pattern.expression))
        found = spans and patterns.Found(text, spans, {})
    else:
        found = pattern.fullmatch(text)
    assert (found is None) == (expected is None)
    if found and expected:
        assert [found.group(n) for n in range(pattern.groups + 1)] == [
            expected[n] or "" for n in range(pattern.groups + 1)
        ]


@pytest.mark.filterwarnings("ignore:Possible :FutureWarning")
@given(st.text(string.printable, max_size=12), TEXTS)
def test_any_text_is_an_expression_as_in_re_or_refused(expression, text):
    try:
        wanted = re.compile(expression)
    except (re.error, OverflowError):
        with pytest.raises(BadPattern):
            # What Java writes as (?<name>…) is taken besides.
            compiled(expression.replace("(?<", "(?"))
        return
    problem = patterns.problem(expression)
    if problem is None:
        assert (compiled(expression).fullmatch(text) is not None) == (wanted.fullmatch(text) is not None)
    else:
        assert re.search("bound|too large", problem)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        (r"(a)\1", "back-reference"),
        (r"(?P<x>a)(?P=x)", "back-reference"),
        (r"(a)?(?(1)b|c)", "condition on a group"),
        ("(", "not a regular expression"),
        (r"(?<=a+)b", "fixed-width"),
        ("a{99999999999999999999}", "too large"),
        ("(((a{1000}){1000}){1000})", "too large"),
        ("(((a{0}){1000}){1000}){1000}", "too large"),
        ("(" * 60 + ")" * 60, "deeper"),
        ("(" * 5000 + ")" * 5000, "deeper"),
        ("()" * 101, "groups"),
        ("a" * 10_001, "longer"),
    ],
)
def test_what_has_no_bound_is_refused_with_what_to_write_instead(expression, says):
    problem = patterns.problem(expression)
    assert problem is not None
    assert says in problem
    with pytest.raises(CdcError) as caught:
        patterns.matches(expression, "a")
    assert caught.value.code == patterns.INVALID


@pytest.mark.parametrize(
    ("expression", "takes", "leaves"),
    [
        (r"^(?!audit).*", "orders", "audit_log"),
        (r"public\.(?!tmp_).*", "public.orders", "public.tmp_1"),
        (r".*(?<!_old)", "a_new", "a_old"),
        (r"public\.(?:(?!_bak).)*", "public.a", "public.a_bak_1"),
        (r"(?>a+)b", "aab", "aa"),
        (r"a++b", "aab", "aaa"),
        (r"größe\.\w+", "größe.länge", "größe.-"),
    ],
)
def test_look_around_and_atomic_groups_are_there(expression, takes, leaves):
    assert patterns.matches(expression, takes)
    assert not patterns.matches(expression, leaves)


@pytest.mark.parametrize("expression", [r"(?a)(?u:\w)", r"(?a:\w)", r"(?a)\w", r"(?x) \w # a letter", r"(?i:É)(?#x)"])
def test_flags_hold_where_they_hold_in_re(expression):
    assert patterns.matches(expression, "é") == (re.fullmatch(expression, "é") is not None)


def test_javas_names_of_groups_are_taken():
    found = compiled(r"(?<prefix>\w+)\.(?<table>.+)").fullmatch("shop.orders")
    assert found is not None
    assert (found.group("table"), found.group(1)) == ("orders", "shop")
    with pytest.raises(IndexError):
        found.group(3)
    assert compiled(r"\(?<a").fullmatch("(<a") is not None


def test_steps_are_counted():
    pattern = compiled("(?=(a*)*b)?.*")
    with pytest.raises(TooManySteps):
        Matching("a" * 50, pattern.groups, steps=100).whole(program_of(pattern.expression))


def test_a_costly_expression_is_told_with_a_code(monkeypatch):
    expression = "".join(f"(?=.*{char}.*{char})?" for char in "abcdefghij") + ".*(?!x).*(?!y).*(?!z).*"
    monkeypatch.setattr(linear_match, "STEPS_MAX", 1)
    with pytest.raises(CdcError) as caught:
        compiled(expression).fullmatch("é" * 3000)
    assert caught.value.code == patterns.COSTLY


def test_a_list_of_names_has_a_limit_of_time(monkeypatch):
    monkeypatch.setattr(patterns, "MATCHING_S", -1.0)
    with pytest.raises(CdcError) as caught:
        compiled("a.*").matching(["a", "b"])
    assert caught.value.code == patterns.COSTLY


def test_a_list_is_bounded_and_its_item_is_named():
    assert patterns.list_problem(["public.a", r"public\.b", "c.*"]) is None
    assert patterns.list_problem([f"public.t{n}" for n in range(5_000)]) is None
    assert "more than" in (patterns.list_problem(["a"] * 10_001) or "")
    assert (patterns.list_problem(["a", "("]) or "").startswith("item 2 is not a regular expression")
    assert "too large" in (patterns.list_problem([f"x{n}.{{0,4000}}" for n in range(20)]) or "")


def test_an_expression_goes_to_another_process():
    pattern = compiled("a(b)?", ignore_case=True)
    pattern.fullmatch("ab")
    assert pickle.loads(pickle.dumps(pattern)) == pattern

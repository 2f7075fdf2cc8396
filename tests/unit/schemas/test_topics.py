import pytest
from cdcworker.schemas import topics
from cdcworker.schemas.errors import CdcError
from hypothesis import given
from hypothesis import strategies as st

names = st.text(min_size=1, max_size=20) | st.text(alphabet="_u0123456789abcdefXé. -", min_size=1, max_size=20)


@given(names)
def test_a_topic_part_is_legal_and_can_be_read_back(name):
    part = topics.topic_part(name)
    assert set(part) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
    assert topics.unescape(part) == name


@given(names)
def test_an_avro_name_is_legal_and_can_be_read_back(name):
    escaped = topics.avro_name(name)
    assert escaped.isascii()
    assert escaped.isidentifier()
    assert topics.unescape(escaped) == name


@given(names, names)
def test_two_names_never_share_an_escaped_form(a, b):
    assert (topics.avro_name(a) == topics.avro_name(b)) == (a == b)


@pytest.mark.parametrize("name", ["orders", "order_items", "_u", "a_u12", "Größe"[:2]])
def test_common_names_stay_as_they_are(name):
    assert topics.avro_name(name) == name


def test_the_path_comes_back_from_the_topic():
    topic = topics.topic_name("shop.eu", ("public", "a.b c"))
    assert topic == "shop.eu.public.a_u002eb_u0020c"
    assert topics.topic_path("shop.eu", topic) == ("public", "a.b c")


def test_a_topic_beyond_249_characters_is_refused():
    assert len(topics.topic_name("p", ("public", "t" * 240))) == 249
    with pytest.raises(CdcError, match="250 characters"):
        topics.topic_name("p", ("public", "t" * 241))


@pytest.mark.parametrize("prefix", ["", "a b", "é", "a/b"])
def test_an_illegal_prefix_is_refused(prefix):
    with pytest.raises(CdcError, match=r"topic\.prefix"):
        topics.topic_name(prefix, ("public", "t"))


def test_topics_that_kafka_takes_for_the_same_are_refused():
    topics.check_collisions("shop", [("public", "a"), ("public", "b"), ("public", "a")])
    with pytest.raises(CdcError) as caught:
        topics.check_collisions("shop", [("public", "a_b"), ("public_a", "b")])
    assert caught.value.code == "schema.topic_collision"


def test_the_namespace_follows_debezium():
    assert topics.namespace("shop.eu", ("public", "order items")) == "shop.eu.public.order_u0020items"

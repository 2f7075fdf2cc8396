"""What a worker knows of the provider: keys come and go, the provider is away, and strangers cannot have it asked without end."""

import asyncio
import json

import pytest
from cdcworker.worker.http.errors import RestError
from cdcworker.worker.identity.fetch import NoAnswer
from cdcworker.worker.identity.keys import TokenHeader
from cdcworker.worker.identity.provider import ADDRESSES_AGAIN_S, AGAIN_S, FRESH_S, KEPT_S, addresses_of

from tests.unit.worker.identity.issuer import ISSUER, Issuer, World, key_of

FIRST, SECOND = TokenHeader("ES256", "first"), TokenHeader("ES256", "second")


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def run(work):
    return asyncio.run(work)


async def refusal(world, header):
    with pytest.raises(RestError) as caught:
        await world.provider.key(header)
    return caught.value.status, caught.value.code


async def settled(world):
    """Waits for what was begun beside a request."""
    while world.provider._under_way is not None:
        await asyncio.sleep(0)


def test_keys_are_found_by_the_issuer_and_kept(world):
    async def work():
        for _ in range(3):
            assert (await world.provider.key(FIRST)).id == "first"
        assert world.issuer.urls() == ["/.well-known/openid-configuration", "/keys"]

    run(work())


def test_an_address_of_keys_needs_no_discovery(tmp_path):
    world = World(tmp_path, jwks_url=f"{ISSUER}/keys")

    async def work():
        assert (await world.provider.key(FIRST)).id == "first"
        assert world.issuer.urls() == ["/keys"]

    run(work())


def test_a_new_key_is_asked_for_once_however_many_come_with_it(world):
    async def work():
        await world.provider.key(FIRST)
        world.issuer.keys = [key_of("second")]
        world.clock.now_s += AGAIN_S
        world.issuer.asked.clear()
        found = await asyncio.gather(*(world.provider.key(SECOND) for _ in range(20)))
        assert {key.id for key in found} == {"second"}
        assert world.issuer.urls() == ["/keys"]
        assert await refusal(world, FIRST) == (401, "oidc.key_unknown")

    run(work())


def test_keys_that_nobody_has_do_not_ask_without_end(world):
    async def work():
        for number in range(50):
            assert await refusal(world, TokenHeader("ES256", f"k{number}")) == (401, "oidc.key_unknown")
        assert world.issuer.urls().count("/keys") == 1
        world.clock.now_s += AGAIN_S
        await refusal(world, SECOND)
        assert world.issuer.urls().count("/keys") == 2

    run(work())


def test_an_old_key_counts_no_more_before_it_was_asked_for_again(world):
    async def work():
        await world.provider.key(FIRST)
        world.issuer.keys = [key_of("second")]
        world.clock.now_s += FRESH_S - 1
        assert (await world.provider.key(FIRST)).id == "first"
        world.clock.now_s += 1
        assert await refusal(world, FIRST) == (401, "oidc.key_unknown")

    run(work())


def test_nobody_waits_again_for_a_provider_that_is_known_to_be_away(world):
    async def work():
        await world.provider.key(FIRST)
        world.issuer.away = True
        world.clock.now_s += FRESH_S
        assert (await world.provider.key(FIRST)).id == "first"
        world.clock.now_s += AGAIN_S
        world.issuer.asked.clear()
        assert (await world.provider.key(FIRST)).id == "first"
        assert world.issuer.asked == [], "it is asked beside the request"
        await settled(world)
        assert world.issuer.asked
        world.issuer.away, world.issuer.keys = False, [key_of("second")]
        world.clock.now_s += FRESH_S
        assert await refusal(world, FIRST) == (401, "oidc.key_unknown"), "nobody has looked for long"

    run(work())


def test_many_who_begin_a_login_ask_once(world):
    async def work():
        await asyncio.gather(*(world.provider.addresses() for _ in range(20)))
        assert len(world.issuer.asked) == 1
        world.clock.now_s += FRESH_S
        world.issuer.away = True
        await asyncio.gather(*(world.provider.addresses() for _ in range(20)))
        assert len(world.issuer.asked) == 2
        await world.provider.addresses()
        assert len(world.issuer.asked) == 2, "not again at once"
        world.issuer.away = False
        world.clock.now_s += ADDRESSES_AGAIN_S
        await world.provider.addresses()
        assert len(world.issuer.asked) == 3

    run(work())


def test_while_the_provider_is_away_known_keys_go_on_and_others_are_refused(world, caplog):
    async def work():
        await world.provider.key(FIRST)
        world.issuer.away = True
        world.clock.now_s += AGAIN_S
        assert await refusal(world, SECOND) == (503, "oidc.provider_unreachable")
        for _ in range(5):
            world.clock.now_s += FRESH_S
            assert (await world.provider.key(FIRST)).id == "first"
            await settled(world)
        assert await refusal(world, SECOND) == (503, "oidc.provider_unreachable")
        world.clock.now_s += KEPT_S
        assert await refusal(world, FIRST) == (503, "oidc.provider_unreachable")
        world.issuer.away = False
        world.clock.now_s += AGAIN_S
        assert (await world.provider.key(FIRST)).id == "first"

    run(work())
    assert "identity provider gave no keys" in caplog.text
    assert "ConnectError" in caplog.text


def test_a_worker_that_starts_before_the_provider_asks_again(world):
    async def work():
        world.issuer.away = True
        assert await refusal(world, FIRST) == (503, "oidc.provider_unreachable")
        world.issuer.away = False
        assert await refusal(world, FIRST) == (503, "oidc.provider_unreachable")
        world.clock.now_s += AGAIN_S
        assert (await world.provider.key(FIRST)).id == "first"

    run(work())


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"keys": 5}', b"[" * 70])
def test_an_answer_that_is_none_keeps_the_keys_that_are_known(world, body):
    async def work():
        await world.provider.key(FIRST)
        world.issuer.answers[f"{ISSUER}/keys"] = (200, body)
        world.clock.now_s += AGAIN_S
        assert await refusal(world, SECOND) == (503, "oidc.provider_unusable")
        assert (await world.provider.key(FIRST)).id == "first"

    run(work())


@pytest.mark.parametrize(("status", "code"), [(404, "oidc.provider_unusable"), (302, "oidc.provider_unusable"), (502, "oidc.provider_unreachable")])  # fmt: skip
def test_another_status_is_no_answer(world, status, code):
    async def work():
        world.issuer.answers[f"{ISSUER}/keys"] = (status, json.dumps({"keys": []}).encode())
        assert await refusal(world, FIRST) == (503, code)

    run(work())


def test_a_client_that_goes_away_does_not_end_the_question_of_others(world):
    async def work():
        waiting = [asyncio.ensure_future(world.provider.key(FIRST)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        assert [key.id for key in await asyncio.gather(*waiting[1:])] == ["first", "first"]

    run(work())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"issuer": "https://evil.test"}, "another issuer"),
        ({"issuer": f"{ISSUER}/"}, "another issuer"),
        ({"jwks_uri": "http://login.test/keys"}, "jwks_uri has to begin with https"),
        ({"jwks_uri": "ftp://login.test/keys"}, "jwks_uri has to begin with https"),
        ({"jwks_uri": "file:///etc/passwd"}, "jwks_uri is no address"),
        ({"jwks_uri": "https://user:pw@login.test/keys"}, "a login or a fragment"),
        ({"jwks_uri": "http://127.0.0.1/keys"}, "https:// as the issuer does"),
        ({"token_endpoint": "http://localhost:1/token"}, "https:// as the issuer does"),
        ({"token_endpoint": 5}, "token_endpoint is no address"),
        ({"userinfo_endpoint": "https://"}, "userinfo_endpoint is no address"),
        ({"end_session_endpoint": "javascript:alert(1)"}, "end_session_endpoint"),
        ({"authorization_endpoint": "https://login.test/a b"}, "authorization_endpoint is no address"),
        ({"authorization_endpoint": "https://login.test/\r\nSet-Cookie: a"}, "authorization_endpoint is no address"),
    ],
)
def test_a_document_that_leads_elsewhere_is_refused(change, told):
    with pytest.raises(NoAnswer, match=told):
        addresses_of(ISSUER, {**Issuer().document, **change})


def test_a_provider_on_this_machine_may_be_asked_over_http():
    document = {"issuer": "http://localhost:1", "jwks_uri": "http://localhost:1/keys"}
    assert addresses_of("http://localhost:1", document).keys == "http://localhost:1/keys"


def test_how_the_clients_secret_is_sent():
    document = Issuer().document
    name = "token_endpoint_auth_methods_supported"
    for methods, basic in ((None, True), (["client_secret_post"], False), (["client_secret_post", "client_secret_basic"], True), (["private_key_jwt"], True)):  # fmt: skip
        assert addresses_of(ISSUER, {**document, name: methods}).takes_basic is basic

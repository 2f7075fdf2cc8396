"""Keys and signatures: only public keys of the provider for signatures, and no token that one of them has not signed."""

import hmac
import json

import pytest
from cdcworker.worker.identity.claims import RefusedToken
from cdcworker.worker.identity.keys import (
    TOKEN_CHARS_MAX,
    header_of,
    is_token,
    key_for,
    parse_key_set,
    verified_claims,
)
from cdcworker.worker.identity.properties import KNOWN_ALGORITHMS
from joserfc import jwk

from tests.unit.worker.identity.issuer import Issuer, key_of, part, signed, text_of

GOOD = {"sub": "u-1", "n": 1}


def keys(*found, **more):
    return parse_key_set(json.dumps({"keys": [{**key.as_dict(private=False), **more} for key in found]}).encode())


def judge(token, known, algorithms=KNOWN_ALGORITHMS):
    header = header_of(token, algorithms)
    key = key_for(known, header)
    return None if key is None else verified_claims(token, header, key)


@pytest.mark.parametrize("algorithm", KNOWN_ALGORITHMS)
@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_a_token_with_each_algorithm(algorithm):
    key = key_of(f"of-{algorithm}", algorithm)
    assert judge(signed(GOOD, key, algorithm), keys(key)) == GOOD
    other = keys(key_of(f"other-{algorithm}", algorithm), kid=key.kid)
    with pytest.raises(RefusedToken, match="signature"):
        judge(signed(GOOD, key, algorithm), other)


def test_nothing_warns_of_what_is_taken(recwarn):
    key = key_of("of-EdDSA", "EdDSA")
    head = part({"alg": "EdDSA", "kid": key.kid})
    signature = key.private_key.sign(f"{head}.{part(GOOD)}".encode())
    assert judge(f"{head}.{part(GOOD)}.{text_of(signature)}", keys(key)) == GOOD
    assert not recwarn.list


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "HS256", "HS512", "ES256K", "RS1", "", 5, None])
def test_no_signature_and_a_shared_key_are_never_taken(algorithm):
    key = key_of("first")
    public = json.dumps(key.as_dict(private=False)).encode()
    header = {"alg": algorithm, "kid": "first", "typ": "at+jwt"}
    for signature in ("", "AAAA", part(public.decode())):
        with pytest.raises(RefusedToken, match="algorithm"):
            judge(f"{part(header)}.{part(GOOD)}.{signature}", keys(key))


def test_a_public_key_is_no_shared_one():
    """The classical mistake: the public key's text as the secret of HS256."""
    key = key_of("rsa", "RS256")
    for secret in (key.as_pem(private=False), json.dumps(key.as_dict(private=False)).encode()):
        begin = f"{part({'alg': 'HS256', 'kid': 'rsa'})}.{part(GOOD)}"
        token = f"{begin}.{text_of(hmac.digest(secret, begin.encode(), 'sha256'))}"
        with pytest.raises(RefusedToken, match="algorithm"):
            judge(token, keys(key))


def test_an_operator_may_take_fewer_algorithms():
    with pytest.raises(RefusedToken, match="algorithm"):
        judge(signed(GOOD, key_of("first")), keys(key_of("first")), ("RS256",))


def test_a_key_is_for_its_algorithm_and_its_type():
    key = key_of("rsa", "RS256")
    any_rsa = key.as_dict(private=True)
    del any_rsa["alg"]
    token = signed(GOOD, jwk.RSAKey.import_key(any_rsa), "PS256")
    assert judge(token, keys(key)) is None
    assert judge(token, keys(key, alg="")) == GOOD
    assert judge(signed(GOOD, key_of("first"), "ES256", kid="rsa"), keys(key)) is None
    other = key_of("of-ES384", "ES384")
    with pytest.raises(RefusedToken, match="signature"):
        judge(signed(GOOD, key_of("first"), "ES256", kid=other.kid), keys(other, alg="ES256"))


def test_a_token_that_names_no_key_is_of_the_only_one():
    first, second = key_of("first"), key_of("second")
    token = signed(GOOD, first, kid=None)
    assert judge(token, keys(first)) == GOOD
    assert judge(token, keys(first, key_of("rsa", "RS256"))) == GOOD
    assert judge(token, keys(first, second)) is None
    assert judge(signed(GOOD, first, kid="other"), keys(first)) is None


def test_a_token_cannot_bring_its_own_key():
    mine = key_of("mine")
    for header in (
        {"jwk": mine.as_dict(private=False)},
        {"jku": "https://evil.test/keys"},
        {"x5u": "https://evil.test/"},
    ):
        with pytest.raises(RefusedToken, match="signature"):
            judge(signed(GOOD, mine, kid="first", **header), keys(key_of("first")))


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ({"crit": ["exp"]}, "header"),
        ({"b64": False}, "header"),
        ({"kid": 5}, "header"),
        ({"typ": "logout+jwt"}, "no access token"),
        ({"typ": "dpop+jwt"}, "no access token"),
        ({"typ": ["JWT"]}, "no access token"),
    ],
)
def test_headers_that_mean_something_else_are_refused(header, told):
    shown = {"alg": "ES256", "kid": "first", **header}
    with pytest.raises(RefusedToken, match=told):
        judge(f"{part(shown)}.{part(GOOD)}.AAAA", keys(key_of("first")))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.b.c",
        "ey.ey.ey",
        "eyJ9.x",
        "ey" + "a" * TOKEN_CHARS_MAX + "..",
        part([1]) + ".a.b",
        part({"alg": "ES256"}) + "=.a.b",
        part({"alg": "ES256"}) + ".a.b.c",
        "ey\u00e9.a.b",
        "ey" + "[" * 3_000 + ".a.b",
    ],
)
def test_a_text_that_is_no_token_is_refused(text):
    with pytest.raises(RefusedToken, match="form of a signed token"):
        header_of(text, KNOWN_ALGORITHMS)


def test_a_change_of_any_part_is_seen():
    key = key_of("first")
    head, body, signature = signed(GOOD, key).split(".")
    forged = part({**GOOD, "sub": "u-2"})
    for parts in (
        (head, forged, signature),
        (head, body, signature[:-4] + "AAAA"),
        (head, body, ""),
        (head, body + "=", signature),
    ):
        with pytest.raises(RefusedToken, match="signature"):
            judge(".".join(parts), keys(key))


@pytest.mark.parametrize("payload", [b"", b"[]", b"text", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"[" * 99, b"\xff"])
def test_signed_nonsense_is_refused(payload):
    key = key_of("first")
    with pytest.raises(RefusedToken):
        judge(signed(payload, key), keys(key))


def test_the_form_tells_tokens_of_a_provider_from_ours():
    assert is_token(Issuer().token())
    for text in ("cdc_0123456789ab_" + "S" * 43, "eyJ", "", "x.y.z"):
        assert not is_token(text)


def test_keys_for_other_purposes_are_left_out():
    good = key_of("first").as_dict(private=False)
    rsa = key_of("rsa", "RS256").as_dict(private=False)
    small = {**rsa, "kid": "small", "n": rsa["n"][:171]}
    items = [
        good,
        {**good, "kid": "for-encryption", "use": "enc"},
        {**good, "kid": "to-sign", "key_ops": ["sign"]},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "shared", "alg": "HS256"},
        {"kty": "EC", "kid": "torn", "crv": "P-256", "x": "AAAA"},
        {"kty": "EC", "kid": "odd", "crv": "P-1", "x": "AAAA", "y": "AAAA"},
        {"kty": "RSA", "kid": "no-number", "n": 5, "e": "AQAB"},
        {"kty": ["RSA"], "kid": "list"},
        {"kty": "new", "kid": "new"},
        small,
        "text",
        None,
    ]
    found = parse_key_set(json.dumps({"keys": items}).encode())
    assert [key.id for key in found] == ["first"]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"keys": {}}', b"{" * 99, b'{"keys": "' + b"x" * (1 << 20) + b'"}']
)
def test_what_is_no_key_set_is_refused(body):
    with pytest.raises(ValueError, match=r"keys|JSON|object|deep|long"):
        parse_key_set(body)

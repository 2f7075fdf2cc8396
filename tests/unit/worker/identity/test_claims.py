"""Claims: which tokens count here and now, and whom they name."""

import pytest
from cdcworker.worker.identity import claims as c

NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        ({}, "does not say when it expires"),
        ({"exp": NOW - 31}, "has expired"),
        ({"exp": NOW - 30}, "has expired"),
        ({"exp": "tomorrow"}, "a time that is none (exp)"),
        ({"exp": True}, "a time that is none (exp)"),
        ({"exp": float("nan")}, "a time that is none (exp)"),
        ({"exp": 1e300}, "a time that is none (exp)"),
        ({"exp": -5}, "a time that is none (exp)"),
        ({"exp": NOW + 9, "nbf": NOW + 31}, "not good yet"),
        ({"exp": NOW + 9, "iat": NOW + 31}, "not good yet"),
        ({"exp": NOW + 9, "nbf": [1]}, "a time that is none (nbf)"),
    ],
)
def test_a_token_counts_in_its_time_only(claims, told):
    with pytest.raises(c.RefusedToken) as caught:
        c.check_times(claims, NOW)
    assert told in str(caught.value)


def test_clocks_may_differ_by_some_seconds():
    c.check_times({"exp": NOW - 29, "nbf": NOW + 29, "iat": NOW + 29}, NOW)


@pytest.mark.parametrize("issuer", ["https://login.test/", "https://LOGIN.test", None, ["https://login.test"]])
def test_the_issuer_is_the_very_text(issuer):
    with pytest.raises(c.RefusedToken, match="another issuer"):
        c.check_issuer({"iss": issuer}, "https://login.test")


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        ({}, "another audience"),
        ({"aud": "other"}, "another audience"),
        ({"aud": "cdc-and-more"}, "another audience"),
        ({"aud": ["a", "b"]}, "another audience"),
        ({"aud": {"cdc": 1}}, "another audience"),
        ({"aud": [["cdc"]]}, "another audience"),
        ({"aud": "cdc"}, "authorized.parties"),
        ({"aud": "cdc", "azp": "other", "client_id": "robot"}, "authorized.parties"),
        ({"aud": "cdc", "client_id": "other"}, "authorized.parties"),
        ({"aud": "cdc", "azp": "robot", "typ": "ID"}, "no access token"),
        ({"aud": "cdc", "azp": "robot", "typ": "Refresh"}, "no access token"),
        ({"aud": "cdc", "azp": "robot", "at_hash": "x"}, "no access token"),
        ({"aud": "cdc", "azp": "robot", "events": {}}, "no access token"),
    ],
)
def test_a_bearer_token_is_for_us_and_of_a_client_that_may_use_it(claims, told):
    with pytest.raises(c.RefusedToken, match=told):
        c.check_bearer(claims, ("cdc", "cdc2"), frozenset({"robot"}))


def test_a_bearer_token_for_us_counts():
    c.check_bearer({"aud": ["x", "cdc2"], "azp": "robot"}, ("cdc", "cdc2"), frozenset({"robot"}))
    c.check_bearer({"aud": "cdc", "client_id": "robot"}, ("cdc",), frozenset({"robot"}))
    c.check_bearer({"aud": "cdc"}, ("cdc",), frozenset())


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        ({"aud": "other", "nonce": "n"}, "another client"),
        ({"aud": "console", "azp": "other", "nonce": "n"}, "given to another client"),
        ({"aud": ["console", "other"], "nonce": "n"}, "given to another client"),
        ({"aud": "console"}, "nonce"),
        ({"aud": "console", "nonce": "m"}, "nonce"),
    ],
)
def test_an_id_token_is_of_the_login_that_was_begun(claims, told):
    with pytest.raises(c.RefusedToken, match=told):
        c.check_login(claims, "console", "n")


def test_an_id_token_of_this_login_counts():
    c.check_login({"aud": "console", "nonce": "n"}, "console", "n")
    c.check_login({"aud": ["console", "other"], "azp": "console", "nonce": "n"}, "console", "n")
    with pytest.raises(c.RefusedToken):
        c.check_login({"aud": "console", "nonce": ""}, "console", "")


@pytest.mark.parametrize(
    ("claims", "path", "expected"),
    [
        ({"roles": ["a", "b"]}, "roles", ("a", "b")),
        ({"scope": "a  b"}, "scope", ("a", "b")),
        ({"realm_access": {"roles": ["a"]}}, "realm_access.roles", ("a",)),
        ({"resource_access": {"my.client": {"roles": ["a"]}}}, "resource_access.my.client.roles", ("a",)),
        ({"https://shop.test/roles": ["a"]}, "https://shop.test/roles", ("a",)),
        ({"a.b": ["whole"], "a": {"b": ["parts"]}}, "a.b", ("whole",)),
        ({"roles": ["a", 1, None, ["b"], ""]}, "roles", ("a",)),
        ({"roles": {"a": 1}}, "roles", ()),
        ({"roles": 5}, "roles", ()),
        ({}, "roles", ()),
        ({"realm_access": "roles"}, "realm_access.roles", ()),
        ({"roles": "x"}, "", ()),
    ],
)
def test_roles_are_found_where_the_operator_says(claims, path, expected):
    assert c.roles_of(c.found(claims, path)) == expected


def test_so_many_roles_are_looked_at_and_no_more():
    assert len(c.roles_of([str(n) for n in range(c.ROLES_MAX + 1)])) == c.ROLES_MAX


@pytest.mark.parametrize("subject", [None, "", 5, ["a"], "a\nb", "x" * 256])
def test_a_token_without_a_subject_that_can_be_told_counts_for_nobody(subject):
    with pytest.raises(c.RefusedToken, match="names no subject"):
        c.identity_of({"sub": subject}, "roles", "name")


def test_who_has_no_name_is_named_by_the_subject():
    for name in (None, "", 5, "ada\x1b[31m"):
        assert c.identity_of({"sub": "u", "name": name}, "roles", "name").name == "u"
    found = c.identity_of(
        {"sub": "u", "name": "ada", "jti": "t", "sid": "s", "iat": 5, "exp": 9, "roles": "a"}, "roles", "name"
    )
    assert (found.subject, found.name, found.token, found.session) == ("u", "ada", "t", "s")
    assert (found.issued_s, found.expires_s, found.roles) == (5.0, 9.0, ("a",))


@pytest.mark.parametrize("party", [["robot"], {"robot": 1}, 5, True])
def test_a_party_of_an_odd_kind_is_none(party):
    with pytest.raises(c.RefusedToken, match="does not name"):
        c.check_bearer({"aud": "us", "azp": party}, ("us",), frozenset({"robot"}))


def test_the_proof_of_a_login_is_no_bearer_token():
    with pytest.raises(c.RefusedToken, match="no access token"):
        c.check_bearer({"aud": "console", "nonce": "n"}, ("console",), frozenset())
    c.check_bearer({"aud": "console", "nonce": "n", "typ": "Bearer"}, ("console",), frozenset())

"""A login to the console at a provider: what is sent where, what has to come back, and the cookie that all workers take."""

import base64
import hashlib
import json
from dataclasses import replace
from http.cookies import SimpleCookie
from urllib.parse import parse_qsl, urlsplit

import pytest
from cdcworker.connectors.config.definition import Secret
from cdcworker.worker.identity.login import AT_ONCE_MAX, ConsoleLogin
from cdcworker.worker.identity.sessions import COOKIE_CHARS_MAX, LOGIN_S, Cookies, Sessions
from cdcworker.worker.identity.settings import ConsoleClient
from cdcworker.worker.security.audit import Audit
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.worker_secrets import PLAIN

from tests.unit.worker.identity.issuer import ISSUER, NOW_S, World, key_of, part, text_of

URL = "https://cdc.test/ui/"
SECRETS = (b"s" * 40,)
CLIENT = ConsoleClient("console", Secret("of: the/client"), ("openid", "profile"), URL, 3_600.0)


class Console:
    """A worker with a login, and a browser that keeps its cookies."""

    def __init__(self, connect, herder, world, trail, secrets=SECRETS, client=CLIENT):
        self.world = world
        settings = replace(world.settings, client=client)
        world.tokens._settings = settings
        cookies = Cookies(client.url, "g")
        self.sessions = Sessions(world.tokens, client, cookies, lambda: secrets, world.clock)
        login = ConsoleLogin(settings, world.provider, world.issuer, world.tokens, self.sessions)
        gate = Gate(tokens=world.tokens, sessions=self.sessions)
        self.client = connect(herder, gate=gate, login=login, audit=Audit("w1", trail.append))
        self.jar = {}
        self.set = {}

    def ask(self, method, path, headers=None, **more):
        sent = {"Accept": "text/html,*/*;q=0.8", **(headers or {})}
        if self.jar:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.jar.items())
        answer = self.client(method, path, headers=sent, **more)
        for header in answer.headers.get_list("set-cookie"):
            ((name, cookie),) = SimpleCookie(header).items()
            self.set[name] = header
            if cookie["max-age"] == "0":
                self.jar.pop(name, None)
            else:
                self.jar[name] = cookie.value
        return answer

    def begin(self, query=""):
        """Returns what the provider is asked."""
        answer = self.ask("GET", f"/ui/login{query}")
        assert answer.status_code == 303, answer.text
        assert answer.headers["location"].startswith(f"{ISSUER}/auth?")
        return dict(parse_qsl(urlsplit(answer.headers["location"]).query))

    def tokens(self, asked, **claims):
        """Has the provider give an ID token for whatever code comes."""
        token = self.id_token(asked, **claims)
        self.answer({"id_token": token, "token_type": "Bearer", "access_token": "opaque"})
        return token

    def id_token(self, asked, **claims):
        own = {"aud": "console", "azp": None, "sid": "s-1", "nonce": asked["nonce"]}
        return self.world.issuer.token(header={"typ": "JWT"}, **{**own, **claims})

    def answer(self, content, status=200):
        self.world.issuer.answers[f"{ISSUER}/token"] = (status, json.dumps(content).encode())

    def come_back(self, asked, **query):
        given = {"code": "c-1", "state": asked["state"], "iss": ISSUER, **query}
        return self.ask(
            "GET", "/ui/callback", params={name: value for name, value in given.items() if value is not None}
        )

    def log_in(self, **claims):
        asked = self.begin()
        self.tokens(asked, **claims)
        answer = self.come_back(asked)
        assert (answer.status_code, answer.headers["location"]) == (303, URL), answer.text
        return asked

    def who(self, **headers):
        return self.ask("GET", "/v1/caller", {"Accept": "application/json", **headers})


@pytest.fixture
def trail():
    return []


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, username_claim="preferred_username")


@pytest.fixture
def console(connect, herder, cluster, world, trail):
    cluster.add("shop-orders")
    return Console(connect, herder, world, trail)


def test_the_page_is_told_where_people_log_in(console, connect, herder):
    assert console.client("GET", "/ui/logins").json() == {"single_sign_on": f"{URL}login"}
    assert connect(herder).get("/ui/logins").json() == {"single_sign_on": None}
    assert connect(herder).get("/ui/login").status_code == 404
    assert connect(herder).get("/ui/callback?code=c&state=s").status_code == 404
    assert connect(herder).post("/ui/logout").status_code == 404


def test_the_provider_is_asked_for_a_code_with_pkce_state_and_nonce(console):
    asked, other = console.begin(), console.begin()
    assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
    assert (asked["client_id"], asked["redirect_uri"]) == ("console", f"{URL}callback")
    assert asked["scope"] == "openid profile"
    assert "prompt" not in asked
    for name in ("state", "nonce", "code_challenge"):
        assert len(asked[name]) == 43
        assert asked[name] != other[name]
    assert console.begin("?again=true")["prompt"] == "login"
    ((name, header),) = console.set.items()
    assert name.startswith("__Secure-cdcworker-login-")
    for part_of in ("HttpOnly", "Secure", "SameSite=Lax", "Path=/ui/callback", "Max-Age=600"):
        assert part_of in header.split("; ")
    # The cookie alone tells nothing of what the provider expects.
    assert not any(asked[name] in header for name in ("state", "nonce", "code_challenge"))


def test_a_login_gives_a_session_and_no_token_to_the_browser(console, world, trail):
    asked = console.begin()
    token = console.tokens(asked, preferred_username="ada", roles=["cdc-admins", "everybody"])
    answer = console.come_back(asked)
    assert (answer.status_code, answer.headers["location"]) == (303, URL)
    question = next(one for one in world.issuer.asked if one.url == f"{ISSUER}/token")
    assert question.form["code"] == "c-1"
    challenge = text_of(hashlib.sha256(question.form["code_verifier"].encode()).digest())
    assert challenge == asked["code_challenge"]
    basic = base64.b64decode(question.headers["Authorization"].removeprefix("Basic ")).decode()
    assert basic == "console:of%3A%20the%2Fclient"
    assert "client_secret" not in question.form
    found = console.who().json()
    assert found == {"name": "ada", "by": "session", "grants": [{"role": "admin", "prefix": ""}]}
    (session,) = (header for name, header in console.set.items() if name.startswith("__Host-cdcworker-"))
    assert {"HttpOnly", "Secure", "SameSite=Strict", "Path=/", "Max-Age=3600"} <= set(session.split("; "))
    assert not any("login" in name for name in console.jar)
    for kept in (*console.jar.values(), json.dumps(trail)):
        assert token not in kept
        assert token.split(".")[2] not in kept
    entry = next(entry for entry in trail if entry["path"] == "/ui/callback")
    assert (entry["who"], entry["subject"], entry["by"], entry["status"]) == ("ada", "u-1", "session", 303)


def test_every_worker_with_the_secret_takes_the_session(console, connect, herder, world, trail):
    console.log_in()
    for secrets, status in (
        (SECRETS, 200),
        ((b"n" * 40, *SECRETS), 200),
        ((b"n" * 40,), 401),
        ((PLAIN,), 401),
    ):
        other = Console(connect, herder, world, trail, secrets)
        other.jar = dict(console.jar)
        assert other.who().status_code == status


def test_a_login_that_one_worker_has_begun_ends_at_another(console, connect, herder, world, trail):
    asked = console.begin()
    console.tokens(asked)
    other = Console(connect, herder, world, trail, (b"n" * 40, *SECRETS))
    other.jar = dict(console.jar)
    assert other.come_back(asked).status_code == 303
    console.jar = dict(other.jar)
    assert console.who().status_code == 200


def test_the_key_in_the_config_topic_makes_no_session(connect, herder, world, trail):
    mine = Console(connect, herder, world, trail, (*SECRETS, PLAIN))
    mine.log_in()
    (name,) = (name for name in mine.jar if name.startswith("__Host-"))
    assert mine.jar[name].count(".") == 1
    forger = Console(connect, herder, world, trail, (PLAIN,))
    forger.jar = dict(mine.jar)
    assert forger.who().status_code == 401


def test_a_session_that_was_changed_is_none(console):
    console.log_in()
    (name,) = (name for name in console.jar if name.startswith("__Host-"))
    payload, mac = good = console.jar[name].split(".")
    assert console.who().status_code == 200
    content = json.loads(base64.urlsafe_b64decode(payload + "=="))
    forged = part({**content, "roles": ["cdc-admins"]})
    values = [f"{forged}.{mac}", payload, f"{payload}.", f".{mac}", f"{payload}.{mac[:-2]}AA", "", "a.b.c", mac]
    values += [f"{payload}{'.A' * 9}.{mac}", "x" * (COOKIE_CHARS_MAX + 1)]
    for value in values:
        console.jar[name] = value
        assert console.who().status_code == 401, value
    console.jar[name] = ".".join(good)
    assert console.who().status_code == 200


@pytest.mark.parametrize("value", ["\xe9.x", "\xff", "\x00"])
def test_bytes_that_no_worker_has_written_are_no_session(console, value):
    name = console.sessions.cookies.session_name
    assert console.sessions.caller(f"{name}={value}") is None


def test_a_cookie_of_a_login_is_no_session(console):
    console.begin()
    (login,) = console.jar.values()
    console.jar = {console.sessions.cookies.session_name: login}
    assert console.who().status_code == 401


def test_a_session_ends(console, world):
    console.log_in()
    world.clock.now_s += 3_599
    assert console.who().status_code == 200
    world.clock.now_s += 2
    assert console.who().status_code == 401


def test_a_shorter_time_holds_for_sessions_that_are_there(console, connect, herder, world, trail):
    console.log_in()
    world.clock.now_s += 400
    shorter = Console(connect, herder, world, trail, client=replace(CLIENT, session_s=300.0))
    shorter.jar = dict(console.jar)
    assert shorter.who().status_code == 401


@pytest.mark.parametrize(
    "entry", [{"subject": "u-1"}, {"session": "s-1"}, {"token": "t-1"}, {"issued_before": "2100-01-01T00:00:00Z"}]
)
def test_a_session_is_revoked_without_a_restart(console, world, entry):
    console.log_in()
    world.write({"roles": {"cdc-readers": ["read"]}, "revoked": [entry]})
    world.clock.now_s += 2
    answer = console.who()
    assert (answer.status_code, answer.json()["code"]) == (401, "oidc.revoked")
    asked = console.begin()
    console.tokens(asked)
    assert console.come_back(asked).status_code == 401


def test_what_the_roles_of_a_session_may_do_changes_without_a_restart(console, world):
    console.log_in()
    assert [grant["role"] for grant in console.who().json()["grants"]] == ["read"]
    world.write({"roles": {"cdc-readers": ["operate"]}})
    world.clock.now_s += 2
    assert [grant["role"] for grant in console.who().json()["grants"]] == ["operate"]
    world.write({"roles": {}})
    world.clock.now_s += 2
    assert console.who().status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://cdc.test"}, 202),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.test"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": "https://shop.cdc.test"}, 403),
        ({"Origin": "https://evil.test"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_a_page_of_another_site_changes_nothing_with_a_session(console, headers, status):
    console.log_in(roles=["cdc-admins"])
    answer = console.ask("PUT", "/connectors/shop-orders/pause", headers)
    assert answer.status_code == status
    assert console.ask("POST", "/ui/logout", headers).status_code == (200 if status == 202 else 403)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"state": None}, "not begun in this browser"),
        ({"state": "A" * 43}, "not begun in this browser"),
        ({"state": "\u00e9"}, "not begun in this browser"),
        ({"code": None}, "no code"),
        ({"code": "x" * 5_000}, "no code"),
        ({"error": "access_denied"}, "says access_denied"),
        ({"error": "<script>alert(1)</script>"}, "says no"),
        ({"iss": "https://evil.test"}, "another provider"),
    ],
)
def test_what_comes_back_has_to_be_of_this_login(console, trail, query, told):
    asked = console.begin()
    console.tokens(asked)
    answer = console.come_back(asked, **query)
    assert answer.status_code == 401
    assert told in answer.text
    assert "oidc.login_failed" in answer.text
    assert "<script" not in answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert console.who().status_code == 401
    assert any(entry["path"] == "/ui/callback" and entry["result"] == "denied" for entry in trail)


def test_a_provider_that_names_itself_always_does(console, world):
    world.issuer.document["authorization_response_iss_parameter_supported"] = True
    asked = console.begin()
    console.tokens(asked)
    assert "another provider" in console.come_back(asked, iss=None).text


def test_another_browser_cannot_end_a_login(console):
    asked = console.begin()
    console.tokens(asked)
    console.jar = {}
    assert "not begun in this browser" in console.come_back(asked).text
    console.begin()
    assert "not begun in this browser" in console.come_back(asked).text


def test_a_login_that_takes_too_long_is_begun_again(console, world):
    asked = console.begin()
    console.tokens(asked)
    world.clock.now_s += LOGIN_S + 1
    assert "too long ago" in console.come_back(asked).text


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        ({"nonce": "another"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"aud": "other"}, "another client"),
        ({"aud": ["console", "other"]}, "another client"),
        ({"azp": "other"}, "another client"),
        ({"iss": "https://evil.test"}, "another issuer"),
        ({"exp": NOW_S - 60}, "has expired"),
        ({"key": key_of("stranger")}, "does not publish"),
    ],
)
def test_an_id_token_that_does_not_count_gives_no_session(console, claims, told):
    asked = console.begin()
    console.tokens(asked, **claims)
    answer = console.come_back(asked)
    assert answer.status_code == 401
    assert told in answer.text
    assert console.who().status_code == 401


@pytest.mark.parametrize(
    ("content", "status", "code", "shown"),
    [
        ({"error": "invalid_grant", "error_description": "canary"}, 400, 401, "no token for the code"),
        ({"error": "invalid_client"}, 401, 401, "no token for the code"),
        ({}, 200, 401, "no ID token"),
        ({"id_token": 5}, 200, 401, "no ID token"),
        ({"id_token": "a.b.c"}, 200, 401, "form of a signed token"),
        ({"id_token": f"{part({'alg': 'none'})}.{part({'sub': 'u-1'})}."}, 200, 401, "algorithm"),
        ({}, 503, 503, "cannot be asked"),
    ],
)
def test_a_provider_that_gives_no_token_gives_no_session(console, caplog, content, status, code, shown):
    asked = console.begin()
    console.answer(content, status)
    answer = console.come_back(asked)
    assert (answer.status_code, shown in answer.text) == (code, True)
    assert "canary" not in answer.text + caplog.text


def test_while_the_provider_is_away_nobody_logs_in_and_sessions_go_on(console, world):
    console.log_in()
    world.issuer.away = True
    world.clock.now_s += 1_000
    assert console.who().status_code == 200
    asked = console.begin()
    console.tokens(asked)
    answer = console.come_back(asked)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "oidc.provider_unreachable" in answer.text


def test_a_worker_that_never_reached_the_provider_says_so(console, world):
    world.issuer.away = True
    answer = console.ask("GET", "/ui/login")
    assert answer.status_code == 503
    assert "oidc.provider_unreachable" in answer.text


def test_roles_come_from_the_access_token_where_it_is_for_us(console, world):
    asked = console.begin()
    token = console.id_token(asked, roles=None)
    access = world.issuer.token(roles=["cdc-admins"], preferred_username="ada")
    console.answer({"id_token": token, "access_token": access})
    assert console.come_back(asked).status_code == 303
    found = console.who().json()
    assert (found["name"], [grant["role"] for grant in found["grants"]]) == ("ada", ["admin"])
    assert "/me" not in world.issuer.urls()


@pytest.mark.parametrize(
    "access",
    [
        {"aud": "https://shop.test/rest", "roles": ["cdc-admins"]},
        {"sub": "u-2", "roles": ["cdc-admins"]},
        {"exp": NOW_S - 99, "roles": ["cdc-admins"]},
        {"key": key_of("stranger"), "roles": ["cdc-admins"]},
    ],
)
def test_an_access_token_of_others_gives_no_roles(console, world, access):
    asked = console.begin()
    token = console.id_token(asked, roles=None)
    console.answer({"id_token": token, "access_token": world.issuer.token(**access)})
    answer = console.come_back(asked)
    assert answer.status_code in (303, 401)
    assert console.who().status_code in (401, 403)


@pytest.mark.parametrize(("subject", "roles"), [("u-1", ["admin"]), ("u-2", [])])
def test_roles_come_from_what_the_provider_tells_of_the_user(console, world, subject, roles):
    asked = console.begin()
    token = console.id_token(asked, roles=None)
    console.answer({"id_token": token, "access_token": "opaque"})
    told = {"sub": subject, "roles": ["cdc-admins"], "preferred_username": "ada"}
    world.issuer.answers[f"{ISSUER}/me"] = (200, json.dumps(told).encode())
    assert console.come_back(asked).status_code == 303
    question = next(one for one in world.issuer.asked if one.url == f"{ISSUER}/me")
    assert question.headers["Authorization"] == "Bearer opaque"
    assert [grant["role"] for grant in console.who().json().get("grants", [])] == roles


def test_more_roles_than_a_cookie_holds_are_told(console, world):
    world.write({"roles": {f"role-{n:040}": ["read"] for n in range(200)}})
    world.clock.now_s += 2
    asked = console.begin()
    console.tokens(asked, roles=[f"role-{n:040}" for n in range(200)])
    answer = console.come_back(asked)
    assert answer.status_code == 403
    assert "do not fit" in answer.text
    # Those that mean nothing here take no room.
    asked = console.begin()
    console.tokens(asked, roles=[*(f"other-{n:040}" for n in range(300)), f"role-{1:040}"])
    assert console.come_back(asked).status_code == 303


def test_logging_out_ends_the_session_here_and_at_the_provider(console, world, trail):
    asked = console.begin()
    token = console.tokens(asked)
    console.come_back(asked)
    assert not any(token in value for value in console.jar.values())
    answer = console.ask("POST", "/ui/logout", {"Accept": "application/json"})
    place = urlsplit(answer.json()["location"])
    assert f"{place.scheme}://{place.netloc}{place.path}" == f"{ISSUER}/end"
    query = dict(parse_qsl(place.query))
    assert query == {"client_id": "console", "post_logout_redirect_uri": URL, "id_token_hint": token}
    assert console.jar == {}
    assert console.who().status_code == 401
    assert (trail[-2]["path"], trail[-2]["who"]) == ("/ui/logout", "u-1")


def test_a_hint_that_was_changed_is_left_out(console):
    console.log_in()
    name = console.sessions.cookies.hint_name
    for value in ("", "x", "A" * 200, console.jar[name][:-4] + "AAAA"):
        console.jar[name] = value
        assert console.sessions.hinted(f"{name}={value}") == ""


def test_a_logout_without_a_provider_ends_the_session_here(console, world):
    console.log_in()
    world.issuer.document["end_session_endpoint"] = None
    world.clock.now_s += 1_000
    assert console.ask("POST", "/ui/logout", {"Accept": "application/json"}).json() == {"location": None}
    assert console.who().status_code == 401


def test_who_is_not_logged_in_any_more_logs_out_at_the_provider(console, world):
    console.log_in()
    world.write({"roles": {}, "revoked": [{"subject": "u-1"}]})
    world.clock.now_s += 2
    assert console.who().status_code == 401
    assert "/end?" in console.ask("POST", "/ui/logout", {"Accept": "application/json"}).json()["location"]
    assert console.jar == {}
    assert "/end?" in console.ask("POST", "/ui/logout", {"Accept": "application/json"}).json()["location"]


def test_a_logout_by_dry_run_ends_nothing(console):
    console.log_in()
    answer = console.ask("POST", "/ui/logout?dry_run=true", {"Accept": "application/json"})
    assert "/end?" in answer.json()["location"]
    assert console.who().status_code == 200


def test_nothing_else_below_the_console_is_changed_without_a_credential(console):
    for method, path in (("POST", "/ui/login"), ("PUT", "/ui/logout"), ("POST", "/ui/logout/x"), ("DELETE", "/ui")):
        assert console.ask(method, path).status_code == 401


def test_a_public_client_sends_no_secret(connect, herder, world, trail):
    console = Console(connect, herder, world, trail, client=replace(CLIENT, secret=None))
    console.log_in()
    question = next(one for one in world.issuer.asked if one.url == f"{ISSUER}/token")
    assert question.headers == {}
    assert question.form["client_id"] == "console"
    assert "client_secret" not in question.form


def test_a_provider_that_wants_the_secret_in_the_form_gets_it_there(console, world):
    world.issuer.document["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    console.log_in()
    question = next(one for one in world.issuer.asked if one.url == f"{ISSUER}/token")
    assert question.headers == {}
    assert question.form["client_secret"] == "of: the/client"
    assert "of: the/client" not in repr(question)


def test_strangers_cannot_have_the_provider_asked_without_end(console):
    login = console.client.app.state.api.settings.protection.login
    asked = console.begin()
    console.tokens(asked)
    login._under_way = AT_ONCE_MAX
    answer = console.come_back(asked)
    assert answer.status_code == 503
    assert "rest.too_many" in answer.text


@pytest.mark.parametrize(
    ("url", "session", "path"),
    [
        ("https://cdc.test/ui/", "__Host-cdcworker-", "/"),
        ("https://cdc.test/prod/ui/", "__Secure-cdcworker-", "/prod/"),
        ("http://localhost:8083/ui/", "cdcworker-", "/"),
    ],
)
def test_names_of_cookies(url, session, path):
    cookies = Cookies(url, "g")
    assert cookies.session_name.startswith(session)
    assert cookies.session("v", 1.0).path == path
    assert cookies.session("v", 1.0).secure is url.startswith("https")
    assert cookies.login("v").path == f"{path}ui/callback"
    assert cookies.hint("v", 1).path == f"{path}ui/logout"
    # Ports and clusters of one host share a browser's cookies.
    assert Cookies(url, "other").session_name != cookies.session_name


def test_a_token_in_the_header_counts_and_not_the_session(console, world):
    console.log_in()
    token = world.issuer.token(sub="u-2", roles=["cdc-admins"])
    assert console.who(Authorization=f"Bearer {token}").json()["name"] == "u-2"
    assert console.who(Authorization="Bearer x.y.z").status_code == 401

"""A real identity provider: its tokens over REST, people who log in to the console, keys that change, a provider that is away."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

import pytest

from tests import plain_http
from tests.identity_provider.server import ACCOUNTS, OTHER_AUDIENCE, PUBLIC, ROBOT, Person, new_key, query_of
from tests.integration.worker.identity.workers import Workers

pytestmark = [pytest.mark.oidc, pytest.mark.timeout(120)]


def ask(workers, token, method="GET", path="/v1/caller", worker=0):
    return plain_http.request(method, workers.api(path, worker), headers={"Authorization": f"Bearer {token}"})


def who(person, workers, worker=0):
    """Whom the console says that the person is, with the cookies of the browser."""
    return person.client.get(workers.api("/v1/caller", worker))


@pytest.fixture
def person():
    """`person("u-ada")` has a browser of their own."""
    made = []

    def make(subject):
        made.append(Person(subject))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def log_in(person):
    def done(workers, subject):
        found = person(subject)
        page = found.go(f"{workers.urls[0]}login")
        assert (page.status_code, str(page.url)) == (200, workers.urls[0]), page.text
        return found

    return done


def roles_of(answer):
    return [grant["role"] for grant in answer.json().get("grants", [])]


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "EdDSA"])
def test_a_program_asks_with_its_token(provider, workers, until, algorithm):
    provider.set(keys=[new_key(f"of-{algorithm}", algorithm), *provider.settings["keys"]], algorithm=algorithm)
    workers.clock.ahead_s += 60.0
    token = provider.token()
    for worker in (0, 1):
        answer = ask(workers, token, worker=worker)
        assert answer.status_code == 200, answer.text
        assert answer.json() == {"name": ROBOT, "by": "oidc", "grants": [{"role": "admin", "prefix": ""}]}
    assert ask(workers, token, "PUT", "/connectors/shop-orders/pause").status_code == 202
    until(lambda: workers.trail)
    (entry,) = workers.trail
    assert (entry["who"], entry["subject"]) == (ROBOT, ROBOT)


def test_a_token_for_another_service_is_refused(provider, workers):
    answer = ask(workers, provider.token(OTHER_AUDIENCE))
    assert (answer.status_code, answer.json()["code"]) == (401, "oidc.token_refused")
    assert "another audience" in answer.json()["message"]


def test_a_token_expires(provider, workers):
    provider.set(ahead=-7200)
    answer = ask(workers, provider.token())
    assert (answer.status_code, answer.json()["code"]) == (401, "oidc.token_refused")
    assert "has expired" in answer.json()["message"]


def test_keys_are_changed_without_a_restart(provider, workers):
    old = provider.token()
    assert ask(workers, old).status_code == 200
    provider.set(keys=[new_key("second"), *provider.settings["keys"]])
    workers.clock.ahead_s += 60.0
    new = provider.token()
    assert [ask(workers, token).status_code for token in (new, old)] == [200, 200]
    provider.set(keys=[new_key("third")])
    workers.clock.ahead_s += 60.0
    assert ask(workers, provider.token()).status_code == 200
    for token in (old, new):
        assert ask(workers, token).json()["code"] == "oidc.key_unknown"


def test_while_the_provider_is_away_known_keys_go_on(provider, workers, log_in):
    token, person = provider.token(), log_in(workers, "u-ada")
    assert ask(workers, token).status_code == 200
    provider.set(keys=[new_key("fourth")])
    new = provider.token()
    provider.stop()
    try:
        workers.clock.ahead_s += 60.0
        assert ask(workers, token).status_code == 200
        answer = ask(workers, new)
        assert (answer.status_code, answer.json()["code"]) == (503, "oidc.provider_unreachable")
        assert who(person, workers).status_code == 200
        answer = plain_http.get(f"{workers.urls[1]}login")
        assert answer.status_code in (303, 503)
    finally:
        provider.start()
    workers.clock.ahead_s += 60.0
    assert ask(workers, provider.token()).status_code == 200


def test_a_role_that_is_taken_away_is_gone_with_the_next_token(provider, workers):
    assert roles_of(ask(workers, provider.token())) == ["admin"]
    provider.set(robots={ROBOT: ["cdc-shop", "no-such-role"]})
    assert roles_of(ask(workers, provider.token())) == ["operate"]
    provider.set(robots={ROBOT: []})
    assert ask(workers, provider.token()).status_code == 403


def test_a_revoked_subject_is_refused_without_a_restart(provider, workers, log_in):
    token, person = provider.token(), log_in(workers, "u-ada")
    workers.write({"subject": ROBOT}, {"subject": "u-ada", "note": "left"})
    for answer in (ask(workers, token), who(person, workers), who(person, workers, 1)):
        assert (answer.status_code, answer.json()["code"]) == (401, "oidc.revoked")
    workers.write()
    assert who(person, workers).status_code == 200


def test_people_log_in_and_every_worker_knows_them(provider, workers, until, log_in):
    ada, rita = log_in(workers, "u-ada"), log_in(workers, "u-rita")
    for worker in (0, 1):
        assert who(ada, workers, worker).json() == {
            "name": "ada",
            "by": "session",
            "grants": [{"role": "admin", "prefix": ""}],
        }
        assert roles_of(who(rita, workers, worker)) == ["read"]
    until(lambda: any(entry["path"] == "/ui/callback" for entry in workers.trail))
    entry = next(entry for entry in workers.trail if entry["path"] == "/ui/callback")
    assert (entry["who"], entry["subject"], entry["by"]) == ("ada", "u-ada", "session")
    assert rita.client.put(workers.api("/connectors/shop-orders/pause")).status_code == 403
    same = {"Sec-Fetch-Site": "same-origin"}
    assert ada.client.put(workers.api("/connectors/shop-orders/pause", 1), headers=same).status_code == 202
    other = {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.test"}
    assert ada.client.put(workers.api("/connectors/shop-orders/resume"), headers=other).status_code == 403


def test_a_login_that_one_worker_has_begun_ends_at_another(provider, workers, person):
    browser = person("u-ada")
    back = browser.go(f"{workers.urls[0]}login", f"{workers.urls[0]}callback")
    elsewhere = urlunsplit(urlsplit(back)._replace(netloc=f"localhost:{workers.ports[1]}"))
    assert browser.client.get(elsewhere).status_code == 303
    assert who(browser, workers).json()["name"] == "ada"


def test_a_code_counts_once_and_in_one_browser(provider, workers, person):
    browser = person("u-ada")
    back = browser.go(f"{workers.urls[0]}login", f"{workers.urls[0]}callback")
    assert {"code", "state", "iss"} <= set(query_of(back))
    stranger = plain_http.get(back)
    assert (stranger.status_code, "oidc.login_failed" in stranger.text) == (401, True)
    assert browser.client.get(back).status_code == 303
    assert browser.client.get(back).status_code == 401


def test_who_has_no_role_gets_in_and_may_do_nothing(provider, workers, log_in):
    person = log_in(workers, "u-nobody")
    answer = who(person, workers)
    assert (answer.status_code, answer.json()["code"]) == (403, "rest.not_permitted")
    assert "norbert" in answer.json()["message"]


def test_a_role_that_was_taken_away_is_gone_with_the_next_login(provider, workers, log_in):
    person = log_in(workers, "u-ada")
    provider.set(accounts={**ACCOUNTS, "u-ada": {"preferred_username": "ada", "roles": ["cdc-readers"]}})
    assert roles_of(who(person, workers)) == ["admin"]
    person.go(f"{workers.urls[0]}login")
    assert roles_of(who(person, workers)) == ["read"]


def test_logging_out_ends_the_session_at_the_provider_too(provider, workers, log_in):
    person = log_in(workers, "u-ada")
    answer = person.client.post(workers.api("/ui/logout"), headers={"Sec-Fetch-Site": "same-origin"})
    place = answer.json()["location"]
    assert place.startswith(f"{provider.issuer}/session/end?")
    assert who(person, workers).status_code == 401
    page = person.go(place)
    assert str(page.url).startswith(workers.urls[0])
    # The provider asks anew who it is.
    answer = person.client.get(person.client.get(f"{workers.urls[0]}login").headers["location"])
    assert "/interaction/" in answer.headers["location"]


def test_roles_that_only_userinfo_has_are_found(provider, workers, log_in):
    provider.set(userinfo=True)
    try:
        assert roles_of(who(log_in(workers, "u-ada"), workers)) == ["admin"]
    finally:
        provider.set(userinfo=False)


def test_a_public_client_logs_in_with_pkce_alone(provider, tmp_path, log_in):
    own = Workers(tmp_path)
    clients = [
        {**client, "redirect_uris": [f"{own.urls[0]}callback"]} if client["client_id"] == PUBLIC else client
        for client in provider.settings["clients"]
    ]
    before = provider.settings["clients"]
    provider.set(clients=clients)
    own.start(provider, **{"rest.oidc.client.id": PUBLIC, "rest.oidc.client.secret": ""})
    try:
        assert roles_of(who(log_in(own, "u-ada"), own)) == ["admin"]
    finally:
        own.stop()
        provider.set(clients=before)


@pytest.mark.kafka
def test_a_whole_worker_takes_tokens_and_reads_its_file_again(provider, workers, kafka, tmp_path, until):
    from tests.integration.one_worker import Worker

    worker = Worker(
        tmp_path, kafka.bootstrap, f"oidc-{workers.ports[0]}",
        **{"rest.oidc.issuer": provider.issuer, "rest.oidc.audience": "https://cdc.test/rest", "rest.oidc.access.file": str(workers.rules)},
    )  # fmt: skip
    try:
        worker.wait_ready()
        headers = {"Authorization": f"Bearer {provider.token()}"}
        assert plain_http.get(f"{worker.url}/connectors").status_code == 401
        # Without a leader it is 503 for a moment.
        until(lambda: plain_http.get(f"{worker.url}/connectors", headers=headers).status_code == 200)
        workers.write({"subject": ROBOT})
        until(lambda: plain_http.get(f"{worker.url}/connectors", headers=headers).status_code == 401)
        assert headers["Authorization"][7:] not in worker.log.read_text()
    finally:
        worker.kill()

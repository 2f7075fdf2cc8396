"""The console's files, and what a browser may do with them: nothing is run but what the worker serves, no page of another site
acts through a browser that knows a password or has a certificate, and nothing of the cluster is in a file."""

import asyncio
import base64
import json
import re

import pytest
import yaml
from cdcworker.worker.console.files import console_files
from cdcworker.worker.rest.settings import ApiSettings, Protection
from cdcworker.worker.security.access import Grant
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import PEER, Gate
from cdcworker.worker.security.users import UserFile

from tests.app_in_memory import ask, create_app
from tests.unit.worker.conftest import Cluster, FakeCatalog, FakeHerder

SECRET = "S" * 43
PASSWORD = "correct horse battery staple"
OWN = sorted(name for name in console_files() if not name.startswith("vendor/"))
SCRIPTS = [name for name in OWN if name.endswith(".js")]


@pytest.fixture(scope="module")
def authenticator(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "users.yaml"
    ada = {"name": "ada", "grants": ["admin"], "password": hashed(PASSWORD, log_n=10)}
    ada["tokens"] = [{"id": "a" * 12, "hash": hashed(SECRET, log_n=10)}]
    some = {"name": "some", "grants": ["read:shop-", "schemas"]}
    some["tokens"] = [{"id": "b" * 12, "hash": hashed(SECRET, log_n=10)}]
    path.write_text(yaml.safe_dump({"users": [ada, some]}))
    path.chmod(0o600)
    made = Authenticator(UserFile(path), decoy_hash=hashed(SECRET, log_n=10))
    yield made
    made.close()


def answer(gate, method, path, *headers, peer=None):
    cluster = Cluster()
    cluster.add("shop-orders")
    settings = ApiSettings(protection=Protection(gate=gate), live_checks=False)
    app = create_app(FakeHerder(cluster), settings=settings, catalog=FakeCatalog())

    async def with_peer(scope, receive, send):
        if peer:
            scope[PEER] = peer
        await app(scope, receive, send)

    return asyncio.run(ask(with_peer, method, path, headers=headers))


def bearer(name="a"):
    return b"authorization", f"Bearer cdc_{name * 12}_{SECRET}".encode()


def basic():
    return b"authorization", b"Basic " + base64.b64encode(f"ada:{PASSWORD}".encode())


# -- what a browser is told -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", *sorted(console_files())])
def test_a_browser_runs_and_shows_nothing_but_the_workers_own_files(name):
    headers = answer(Gate(), "GET", f"/ui/{name}").headers
    policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    for kind in ("script-src", "style-src", "img-src", "connect-src"):
        assert policy[kind] == "'self'"
    for kind in ("base-uri", "form-action", "frame-ancestors", "trusted-types"):
        assert policy[kind] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"


def test_the_page_has_no_script_and_no_style_within_it():
    page = console_files()["index.html"].content.decode()
    assert re.findall(r"<script(?![^>]*\bsrc=)[^>]*>", page) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:|https?://", page) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_makes_markup_or_code_of_text(name):
    text = console_files()[name].content.decode()
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|dangerouslySet|srcdoc|setTimeout\(\s*[\"'`]|style="
    assert re.findall(banned, text) == []


@pytest.mark.parametrize("name", [name for name in OWN if not name.endswith(".json")])
def test_no_file_asks_another_host(name):
    text = console_files()[name].content.decode()
    assert [found for found in re.findall(r"https?://[^\s\"'`)]+", text) if "www.w3.org/2000/svg" not in found] == []


# -- who gets what ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/ui", "/ui/", "/ui/app.js", "/ui/errors.json", "/ui/vendor/preact.js"])
def test_the_files_are_the_same_for_everybody_and_need_no_credential(authenticator, path):
    found = [answer(Gate(authenticator), "GET", path, *headers) for headers in ((), (bearer(),), (bearer("b"),))]
    assert {one.status for one in found} <= {200, 308}
    assert found[0].body == found[1].body == found[2].body
    assert b"shop-orders" not in found[1].body


def test_what_is_open_are_the_files_and_nothing_beside_them(authenticator):
    for path in ("/uix", "/v1/caller", "/", "/connectors", "/v1/ui", "/connectors/ui", "/v1/cluster"):
        assert answer(Gate(authenticator), "GET", path).status == 401
    for path in ("/ui/../connectors", "/ui/%2e%2e/connectors", "/ui/x/y/z"):
        assert answer(Gate(authenticator), "GET", path).status == 404
    assert answer(Gate(authenticator), "POST", "/ui/app.js").status == 401


def test_a_caller_is_told_its_own_grants_and_no_secret(authenticator):
    found = json.loads(answer(Gate(authenticator), "GET", "/v1/caller", bearer("b")).body)
    assert found["name"] == "some"
    assert {"role": "read", "prefix": "shop-"} in found["grants"]
    assert set(found) == {"name", "by", "grants"}
    open_to_all = json.loads(answer(Gate(), "GET", "/v1/caller").body)
    assert open_to_all == {"name": "anonymous", "by": "", "grants": [{"role": "admin", "prefix": ""}]}


def test_no_browser_asks_for_a_password_over_what_the_page_asks(authenticator):
    plain = answer(Gate(authenticator), "GET", "/v1/caller")
    page = answer(Gate(authenticator), "GET", "/v1/caller", (b"x-requested-with", b"cdcworker"))
    assert (plain.status, page.status) == (401, 401)
    assert "Basic" in plain.headers["www-authenticate"]
    assert page.headers["www-authenticate"] == 'Bearer realm="cdcworker"'


# -- pages of other sites ---------------------------------------------------------------------------------------------

PAUSE = "/connectors/shop-orders/pause"
RESTART = "/connectors/shop-orders/restart"
FOREIGN = {
    "another site": [(b"sec-fetch-site", b"cross-site"), (b"origin", b"https://evil.example")],
    "a neighbour": [(b"sec-fetch-site", b"same-site"), (b"origin", b"https://other.localhost")],
    "a browser that says the origin alone": [(b"origin", b"http://evil.example")],
    "a page without an origin": [(b"origin", b"null")],
    "a page without an origin, and no host": [(b"origin", b"null"), (b"host", b"")],
    "another site behind a proxy": [(b"origin", b"http://evil.example"), (b"x-forwarded-host", b"cdc.example, inner")],
    "another site over https behind a proxy": [
        (b"sec-fetch-site", b"cross-site"),
        (b"x-forwarded-host", b"evil.example"),
    ],
    "another port of the host": [(b"origin", b"http://localhost:9999"), (b"x-forwarded-host", b"localhost")],
}
OWN_PAGE = {
    "the console": [(b"sec-fetch-site", b"same-origin"), (b"origin", b"http://localhost")],
    "the console behind a proxy": [(b"sec-fetch-site", b"same-origin"), (b"origin", b"https://cdc.example")],
    "the console of a browser that says the origin alone": [(b"origin", b"http://localhost")],
    "the console behind a proxy with a host of its own": [
        (b"origin", b"http://cdc.example:8080"),
        (b"host", b"worker:8083"),
        (b"x-forwarded-host", b"CDC.example:8080, inner"),
    ],
    "the console behind a proxy that adds the port": [(b"origin", b"http://cdc.example"), (b"host", b"cdc.example:80")],
    "no browser": [],
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize(("method", "path"), [("PUT", PAUSE), ("POST", RESTART), ("DELETE", "/connectors/shop-orders")])
def test_a_page_of_another_site_changes_nothing_with_a_password_or_a_certificate_of_the_browser(
    authenticator, kind, method, path
):
    by_certificate = Gate(certificate_grants=(Grant("admin"),))
    assert answer(Gate(authenticator), method, path, basic(), *FOREIGN[kind]).status == 403
    assert answer(by_certificate, method, path, *FOREIGN[kind], peer="ops").status == 403


@pytest.mark.parametrize("kind", OWN_PAGE)
def test_the_console_and_other_clients_do(authenticator, kind):
    by_certificate = Gate(certificate_grants=(Grant("admin"),))
    assert answer(Gate(authenticator), "PUT", PAUSE, basic(), *OWN_PAGE[kind]).status == 202
    assert answer(by_certificate, "PUT", PAUSE, *OWN_PAGE[kind], peer="ops").status == 202


def test_a_token_which_no_browser_sends_by_itself_is_enough(authenticator):
    for headers in (*FOREIGN.values(), *OWN_PAGE.values()):
        assert answer(Gate(authenticator), "PUT", PAUSE, bearer(), *headers).status == 202


def test_links_from_other_sites_may_be_followed(authenticator):
    site = (b"sec-fetch-site", b"cross-site")
    assert answer(Gate(authenticator), "GET", "/ui/", site).status == 200
    assert answer(Gate(authenticator), "GET", "/connectors", basic(), site).status == 200

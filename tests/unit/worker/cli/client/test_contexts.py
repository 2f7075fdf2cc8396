"""Named clusters: which addresses a command uses, and where a context's token goes."""

from __future__ import annotations

import pytest
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.cli.client import contexts
from cdcworker.worker.cli.client.access import ClientAccess

EAST, WEST = ("http://east:8083",), ("http://west:8083", "http://west:8084")


@pytest.fixture(autouse=True)
def stored(tmp_path, monkeypatch):
    for name in ("CDC_URL", "CDC_CONTEXT", "CDC_TOKEN", "CDC_CA", "CDC_CERT", "CDC_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with_token = {"east": ClientAccess(token="eastern")}
    contexts.path().parent.mkdir()
    contexts.save(contexts.Contexts("east", {"east": EAST, "west": WEST}, with_token))


def test_the_command_comes_before_the_environment_and_that_before_the_current_context(monkeypatch):
    assert contexts.chosen([], "") == EAST
    monkeypatch.setenv("CDC_CONTEXT", "west")
    assert contexts.chosen([], "") == WEST
    monkeypatch.setenv("CDC_URL", "http://here:1")
    assert contexts.chosen([], "") == ("http://here:1",)
    assert contexts.chosen([], "west") == WEST
    assert contexts.chosen(["http://a:1,http://b:2"], "west") == ("http://a:1", "http://b:2")


def test_a_token_goes_to_the_addresses_of_its_own_context_only(monkeypatch):
    assert contexts.access_of([], "", {}).token == "eastern"
    assert contexts.access_of([], "west", {}).token == ""
    assert contexts.access_of(["http://elsewhere:1"], "", {}).token == ""
    monkeypatch.setenv("CDC_URL", "http://elsewhere:1")
    assert contexts.access_of([], "", {}).token == ""
    assert contexts.access_of([], "east", {}).token == "eastern"


def test_a_file_with_a_token_that_others_may_read_is_refused():
    contexts.path().chmod(0o644)
    with pytest.raises(CdcError) as caught:
        contexts.load()
    assert caught.value.code == "cli.contexts_open"
    assert "eastern" not in str(caught.value)


@pytest.mark.parametrize("url", ["east:8083", "ftp://east", "http://", "http://u:secret@east:1", "http://east:x"])
def test_an_address_that_is_none_or_holds_a_password_is_refused(url):
    with pytest.raises(CdcError) as caught:
        contexts.valid(url)
    assert caught.value.code == "cli.url_invalid"
    assert "secret" not in str(caught.value)

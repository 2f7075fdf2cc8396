"""The file about a provider's roles: what is refused in it, what roles may do, and what is revoked."""

import pytest
import yaml
from cdcworker.schemas.errors import CdcError
from cdcworker.worker.identity import access_rules
from cdcworker.worker.identity.access_rules import AccessFile, Identity, parse

from tests.unit.worker.identity.issuer import Clock


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([], "roles:"),
        ({"roles": ["a"]}, "roles:"),
        ({"roles": {}, "role": {}}, "there is no role"),
        ({"roles": {"a": "admin"}}, "roles.a: expects a list"),
        ({"roles": {"a": ["root"]}}, "roles.a: a grant is one of"),
        ({"roles": {}, "revoked": {"subject": "a"}}, "revoked: expects a list"),
        ({"roles": {}, "revoked": ["a"]}, "revoked[0]: expects an object"),
        ({"roles": {}, "revoked": [{"subjet": "a"}]}, "there is no subjet"),
        ({"roles": {}, "revoked": [{"note": "all"}]}, "revoked[0]: names no"),
        ({"roles": {}, "revoked": [{"subject": ""}]}, "revoked[0]: names no"),
        ({"roles": {}, "revoked": [{"issued_before": "soon"}]}, "date and time"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_place(tmp_path, content, told):
    path = tmp_path / "roles.yaml"
    path.write_text(yaml.safe_dump(content))
    path.chmod(0o600)
    with pytest.raises(CdcError) as caught:
        access_rules.read(path)
    assert caught.value.code == "oidc.file_invalid"
    assert told in caught.value.message


def test_a_file_that_others_may_write_is_refused(tmp_path):
    path = tmp_path / "roles.yaml"
    path.write_text("roles: {}")
    path.chmod(0o666)
    with pytest.raises(CdcError, match="everybody may write"):
        access_rules.read(path)


def test_roles_that_the_file_does_not_name_may_do_nothing():
    rules = parse({"roles": {"a": ["read", "operate:shop-"], "b": ["read"], "none": [], 7: ["schemas"]}})
    assert [str(grant) for grant in rules.grants(["b", "a", "other", "none", "A"])] == ["read", "operate:shop-"]
    assert [str(grant) for grant in rules.grants(["7"])] == ["schemas"]
    assert rules.known(["x", "a", "a", "none"]) == ("a", "none")


WHO = Identity("u-1", "ada", token="t-1", session="s-1", issued_s=1_000.0)


@pytest.mark.parametrize(
    ("entry", "holds"),
    [
        ({"subject": "u-1"}, True),
        ({"subject": "ada"}, False),
        ({"token": "t-1"}, True),
        ({"token": "t-2"}, False),
        ({"session": "s-1", "note": "a lost laptop"}, True),
        ({"issued_before": "1970-01-01T00:16:41Z"}, True),
        ({"issued_before": "1970-01-01T00:16:40Z"}, False),
        ({"subject": "u-1", "issued_before": "1970-01-01T00:16:41Z"}, True),
        ({"subject": "u-2", "issued_before": "1970-01-01T00:16:41Z"}, False),
        ({"subject": "u-1", "issued_before": "1970-01-01T00:16:40Z"}, False),
        ({"subject": "u-1", "token": "t-2"}, False),
    ],
)
def test_what_is_revoked(entry, holds):
    assert parse({"roles": {}, "revoked": [entry]}).is_revoked(WHO) is holds


def test_what_does_not_say_when_it_was_issued_was_issued_before():
    rules = parse({"roles": {}, "revoked": [{"issued_before": "1970-01-01T00:00:01Z"}]})
    assert rules.is_revoked(Identity("u", "u"))


def test_an_empty_id_of_a_token_is_not_one_that_is_listed():
    assert not parse({"roles": {}, "revoked": [{"token": "t-1"}]}).is_revoked(Identity("u", "u"))


def test_the_file_is_read_again_when_it_changes(tmp_path):
    path, clock = tmp_path / "roles.yaml", Clock()
    path.write_text(yaml.safe_dump({"roles": {"a": ["read"]}}))
    path.chmod(0o600)
    file = AccessFile(path, clock)
    path.write_text(yaml.safe_dump({"roles": {"a": ["admin"]}, "revoked": [{"subject": "u-1"}]}))
    clock.now_s += 2
    assert [grant.role for grant in file.content().grants(["a"])] == ["admin"]
    assert file.content().is_revoked(WHO)
    path.write_text("roles: [")
    clock.now_s += 2
    assert file.content().is_revoked(WHO)


def test_ids_are_texts_however_they_look(tmp_path):
    path = tmp_path / "roles.yaml"
    path.write_text("roles: {on: [read]}\nrevoked:\n- subject: 007\n- token: 12:30:45\n- session: 1_000\n  token: ~\n")
    path.chmod(0o600)
    rules = access_rules.read(path)
    assert rules.known(["on"]) == ("on",)
    for entry in ({"subject": "007"}, {"token": "12:30:45"}, {"session": "1_000"}):
        assert rules.is_revoked(Identity(**{"subject": "u", "name": "n", **entry})), entry


def test_a_second_list_of_what_is_revoked_does_not_hide_the_first(tmp_path):
    path = tmp_path / "roles.yaml"
    path.write_text("roles: {}\nrevoked:\n- subject: ada\nrevoked:\n- subject: rita\n")
    path.chmod(0o600)
    with pytest.raises(CdcError, match="named twice"):
        access_rules.read(path)

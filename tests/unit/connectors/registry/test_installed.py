"""Plugins of other distributions: only those that the operator names, and a broken one stops no other."""

from __future__ import annotations

import pytest
from cdcworker.connectors.config.installed_plugins import VARIABLE, installed, plugins_of, problem_of_names
from cdcworker.connectors.registry import names as registry
from cdcworker.connectors.registry.installed import connectors_of, of_this_process
from cdcworker.connectors.registry.names import lookup
from cdcworker.connectors.transform_chain.plugin_transforms import transforms_of
from cdcworker.connectors.transforms.data import ConnectRecord, DataError
from cdcworker.schemas.errors import CdcError

from tests.contract import plugin_distributions as made
from tests.contract.plugin_distributions import CONNECTORS, TRANSFORMS

KEYED = (
    "from cdcworker.connectors.api.kit import ConfigKey\n"
    + made.SOURCE.removesuffix(")\n")
    + ", keys=(ConfigKey({}),))\n"
)
"""A source with one key, whose arguments are missing."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def found(*names):
    return connectors_of(plugins_of(names))


def why(*names):
    return {(each.distribution, each.name): each.error.message for each in found(*names).refused}


def test_a_source_is_found_by_its_entry_point_with_its_distribution(folder):
    made.installed(folder, "acme-numbers", made.SOURCE, {CONNECTORS: {"numbers": "plugin"}}, version="3.1")
    (plugin,) = found("Acme_Numbers").found
    assert (plugin.name, plugin.kind, plugin.origin.distribution, plugin.origin.version) == (
        "numbers", "source", "acme-numbers", "3.1",
    )  # fmt: skip
    assert "topic.prefix" in plugin.load().config_def.keys
    assert why("acme-numbers") == {}


@pytest.mark.parametrize(
    ("code", "entry", "text"),
    [
        ("import nowhere_at_all", "x", "its import fails with ModuleNotFoundError"),
        ("raise SystemExit(3)", "x", "its import fails with SystemExit"),
        ("1 +", "x", "its import fails with SyntaxError"),
        ("plugin = 1", "x", "names int; expects a SourcePlugin or a SinkPlugin"),
        ("", "x", "its import fails with AttributeError"),
        ("class Wrong(BaseException): pass\nraise Wrong", "x", "its import fails with Wrong at bad_"),
        ("raise RuntimeError('s3cret')", "x", "its import fails with RuntimeError at bad_"),
        ("class Wrong(Exception):\n    def __str__(self): 1 / 0\nraise Wrong", "x", "its import fails with Wrong"),
        (made.SOURCE.replace("SourcePlugin(Numbers)", "SourcePlugin(Numbers, api=9)"), "x", "version 9"),
        (made.SOURCE.replace("SourcePlugin(Numbers)", "SourcePlugin(Numbers, keys=(1,))"), "x", "no definition"),
        (made.SOURCE.replace("SourcePlugin(Numbers)", "SourcePlugin(Numbers, api=[1])"), "x", "version [1]"),
        (KEYED.replace("{}", "'a', 'TEXT'"), "x", "needs a name and a type"),
        (KEYED.replace("{}", "''"), "x", "needs a name and a type"),
        (
            made.SOURCE
            + "class Odd:\n    @property\n    def __class__(self): raise KeyError('s3cret')\nplugin = Odd()",
            "x",
            "KeyError",
        ),
        (made.SOURCE, "postgres", "ships with the worker"),
        (made.SOURCE, "Numbers", "small letters"),
    ],
)
def test_a_broken_plugin_is_refused_by_name_and_the_others_run(folder, code, entry, text):
    bad = f"bad-{abs(hash((code, entry)))}"
    good = f"good-{abs(hash((code, entry)))}"
    made.installed(folder, bad, code, {CONNECTORS: {entry: "plugin"}})
    made.installed(folder, good, made.SOURCE, {CONNECTORS: {"numbers": "plugin"}})
    told = why(bad, good)[bad, entry]
    assert text in told
    assert "s3cret" not in told
    assert [plugin.name for plugin in found(bad, good).found] == ["numbers"]


def test_of_two_with_one_name_the_second_is_refused(folder):
    for name in ("one-numbers", "two-numbers"):
        made.installed(folder, name, made.SOURCE, {CONNECTORS: {"numbers": "plugin"}})
    assert why("two-numbers", "one-numbers") == {("one-numbers", "numbers"): "two-numbers has a plugin of this name"}


def test_what_is_not_there_or_declares_nothing_is_told(folder):
    made.installed(folder, "no-plugin", "", {"console_scripts": {"x": "plugin"}})
    told = why("never-installed", "no-plugin")
    assert told["never-installed", ""] == "never-installed is not installed"
    assert "declares no plugin" in told["no-plugin", ""]


@pytest.mark.parametrize("text", ["[cdcworker.connectors]\nno value\n", "[cdcworker.connectors]\nx = not a name!\n"])
def test_entry_points_that_cannot_be_read_stop_no_other(folder, text):
    made.installed(folder, "torn", made.SOURCE, {CONNECTORS: {"torn": "plugin"}})
    (folder / "torn-1.2.dist-info" / "entry_points.txt").write_text(text)
    made.installed(folder, "whole", made.SOURCE, {CONNECTORS: {"numbers": "plugin"}})
    assert [plugin.name for plugin in found("torn", "whole").found] == ["numbers"]
    ((place, _),) = why("torn", "whole").items()
    assert place[0] == "torn"


def test_nothing_is_loaded_that_the_operator_has_not_named(folder, monkeypatch):
    made.installed(folder, "silent", "raise RuntimeError('imported')", {CONNECTORS: {"numbers": "plugin"}})
    monkeypatch.delenv(VARIABLE, raising=False)
    installed.cache_clear()
    of_this_process.cache_clear()
    for name in ("numbers", "silent", "silent:plugin"):
        with pytest.raises(CdcError):
            lookup(name)
    assert registry.refused() == ()
    monkeypatch.setenv(VARIABLE, "silent")
    installed.cache_clear()
    of_this_process.cache_clear()
    try:
        assert "its import fails with RuntimeError" in registry.refused()[0].error.message
    finally:
        installed.cache_clear()
        of_this_process.cache_clear()


def test_a_transform_is_a_function_with_keys(folder):
    made.installed(folder, "acme-suffix", made.TRANSFORM, {TRANSFORMS: {"suffix": "plugin"}})
    known = transforms_of(plugins_of(["acme-suffix"]))
    definition = known.definitions["suffix"]
    assert definition.make({"suffix": "-x"}).apply(ConnectRecord("t")).topic == "t-x"
    assert known.sources["suffix"].version == "1.2"
    assert [key.name for key in definition.keys] == ["suffix"]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("plugin = len", "expects a TransformPlugin"),
        (made.TRANSFORM.replace("lambda record, config: record.with_topic(record.topic + config[\"suffix\"])", "3"), "no function"),
        (made.TRANSFORM.replace("keys=", "api=2, keys="), "version 2"),
        (made.TRANSFORM.replace("keys=", "api=[], keys="), "version []"),
        (made.TRANSFORM.replace("keys=(", "keys=('s3cret', "), "AttributeError at"),
    ],
)  # fmt: skip
def test_a_broken_transform_is_refused(folder, code, text):
    name = f"broken-{abs(hash(code))}"
    made.installed(folder, name, code, {TRANSFORMS: {"broken": "plugin"}})
    (one,) = transforms_of(plugins_of([name])).refused
    assert text in one.error.message


def test_an_error_of_a_function_tells_its_place_and_no_value(folder):
    made.installed(
        folder,
        "acme-raises",
        "from cdcworker.connectors.api.kit import TransformPlugin\n"
        "def change(record, config):\n    raise KeyError(record.value)\nplugin = TransformPlugin(change)\n"
        "wrong = TransformPlugin(lambda record, config: 'no record')\n",
        {TRANSFORMS: {"raises": "plugin", "wrong": "wrong"}},
    )
    known = transforms_of(plugins_of(["acme-raises"])).definitions
    with pytest.raises(DataError, match=r"KeyError at acme_raises:3") as caught:
        known["raises"].make({}).apply(ConnectRecord("t", value="secret"))
    assert "secret" not in str(caught.value)
    with pytest.raises(DataError, match="returned str"):
        known["wrong"].make({}).apply(ConnectRecord("t"))


@pytest.mark.parametrize("names", [["a b"], ["../x"], ["x==1"], [""], ["-x"]])
def test_the_property_takes_names_alone(names):
    assert problem_of_names(names)
    assert problem_of_names(["acme.orders", "Acme_2", "a"]) is None

"""Converters of other distributions: they keep the contract of formats, and what they do wrong is told without values."""

from __future__ import annotations

import pytest
from cdcworker.connectors.config.installed_plugins import plugins_of
from cdcworker.connectors.converters.plugin_formats import PluginFormats, formats_of
from cdcworker.connectors.formats.format import Format
from cdcworker.connectors.transforms.data import ConnectSchema
from cdcworker.schemas.errors import CdcError

from tests.contract import plugin_distributions as made
from tests.unit.connectors.formats.contract import VALUES, row_kind, rows

GROUP = "cdcworker.connectors.converters"
CONVERTER = """
import ast
from cdcworker.connectors.api.kit import ConfigKey, ConverterPlugin

def write(value, schema, config):
    if value == {"int32": 666}:
        raise RuntimeError("s3cret")
    if value == {"int32": 667}:
        return "no bytes"
    return (config["mark"] + repr(value)).encode()

def read(data, config):
    return ast.literal_eval(data.decode().removeprefix(config["mark"]))

plugin = ConverterPlugin(write, read, keys=(ConfigKey("mark", default="#"),), title="Python's own notation.")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def found(folder, code: str, name: str = "notation", distribution: str = "acme-notation") -> PluginFormats:
    made.installed(folder, distribution, code, {GROUP: {name: "plugin"}})
    return formats_of(plugins_of([distribution]))


def format_of(folder) -> Format:
    [of] = found(folder, CONVERTER).formats.values()
    return of


def test_a_converter_writes_and_reads_rows_as_mappings(folder):
    of = format_of(folder)
    assert (of.name, of.doc, [key.name for key in of.keys]) == ("notation", "Python's own notation.", ["mark"])
    writer, reader = of.write({"mark": "!"}).writer(row_kind(*VALUES)), of.read({"mark": "!"}, None)
    for row in rows():
        for given in (row, tuple(row.values())):
            data = writer.wrap(writer.body(given))
            assert data.startswith(b"!{")
            assert reader.read(data) == (None, row)
    assert reader.read(None) == (None, None)


@pytest.mark.parametrize(("value", "says"), [(666, "RuntimeError"), (667, "returned str in place of bytes")])
def test_what_it_does_wrong_is_told_without_values(folder, value, says):
    writer = format_of(folder).write({"mark": "!"}).writer(row_kind("int32"))
    with pytest.raises(CdcError) as caught:
        writer.body({"int32": value})
    assert (caught.value.code, caught.value.kind) == ("schema.no_form", "data")
    assert says in caught.value.message
    assert "s3cret" not in str(caught.value)


def test_bytes_that_it_cannot_read_are_named_without_what_they_hold(folder):
    with pytest.raises(CdcError) as caught:
        format_of(folder).read({"mark": "!"}, None).read(b"canary(")
    assert caught.value.code == "sink.record_unreadable"
    assert "canary" not in str(caught.value)


def test_a_pair_is_a_value_with_its_schema(folder):
    code = CONVERTER.replace(
        "    return ast",
        "    from cdcworker.connectors.api.kit import ConnectSchema\n    return ConnectSchema('int64'), 7\n    return ast",
    )
    [of] = found(folder, code, distribution="acme-pair").formats.values()
    assert of.read({"mark": "!"}, None).read(b"x") == (ConnectSchema("int64"), 7)


@pytest.mark.parametrize(
    ("code", "name", "says"),
    [
        ("plugin = 1", "x", "expects a ConverterPlugin"),
        (CONVERTER.replace("ConverterPlugin(write,", "ConverterPlugin(1,"), "x", "is no function"),
        (CONVERTER.replace("title=", "api=9, title="), "x", "version 9"),
        (CONVERTER, "avro", "a converter that ships has this name"),
        ("raise RuntimeError('s3cret')", "x", "its import fails with RuntimeError"),
    ],
)
def test_what_cannot_be_used_is_refused_and_told(folder, code, name, says, request):
    distribution = f"acme-{abs(hash(request.node.name))}"
    [refused] = found(folder, code, name, distribution).refused
    assert says in refused.error.message
    assert "s3cret" not in refused.error.message

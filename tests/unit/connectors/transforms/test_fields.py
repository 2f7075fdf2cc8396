"""ExtractField, Flatten, HoistField, InsertField, MaskField, ReplaceField, SetSchemaMetadata, ValueToKey."""

import pytest
from cdcworker.connectors.transforms.data import DECIMAL, TIMESTAMP, ConnectRecord, ConnectSchema
from cdcworker.connectors.transforms.field_path import steps_of
from cdcworker.schemas.errors import CdcError


class TestExtractField:
    def test_a_field_takes_the_place_of_the_whole(self, kit):
        schema = kit.struct(("magic", kit.optional(kit.INT32)))
        made = kit.applied("ExtractField$Key", ConnectRecord("t", schema, {"magic": 42}), field="magic")
        assert (made.key_schema, made.key) == (kit.optional(kit.INT32), 42)

    def test_without_a_schema(self, kit):
        assert kit.applied("ExtractField$Value", kit.value(None, {"magic": 42}), field="magic").value == 42
        assert kit.applied("ExtractField$Value", kit.value(None, {"magic": 42}), field="other").value is None
        assert kit.applied("ExtractField$Value", kit.value(None, None), field="magic").value is None

    def test_a_null_stays_null_and_has_the_schema_of_the_field(self, kit):
        schema = kit.optional(kit.struct(("magic", kit.optional(kit.INT32))))
        made = kit.applied("ExtractField$Value", kit.value(schema, None), field="magic")
        assert (made.value_schema, made.value) == (kit.optional(kit.INT32), None)

    def test_a_path_leads_into_structs(self, kit):
        schema = kit.struct(("magic", kit.struct(("foo.x", kit.optional(kit.INT32)))))
        keys = {"field": "magic.`foo.x`", "field_syntax_version": "V2"}
        assert kit.applied("ExtractField$Value", kit.value(schema, {"magic": {"foo.x": 42}}), **keys).value == 42
        assert kit.applied("ExtractField$Value", kit.value(None, {"magic": {"foo.x": 42}}), **keys).value == 42

    def test_an_unknown_field_is_an_error_that_names_it(self, kit):
        with pytest.raises(CdcError, match="Unknown field: nonexistent"):
            kit.applied(
                "ExtractField$Value", kit.value(kit.struct(("magic", kit.INT32)), {"magic": 1}), field="nonexistent"
            )

    @pytest.mark.parametrize(("replaces", "expected"), [("true", 7), ("false", None)])
    def test_a_null_counts_as_the_default_or_not(self, kit, replaces, expected):
        schema = kit.struct(("magic", kit.optional(kit.INT32, 7)))
        keys = {"field": "magic", "replace_null_with_default": replaces}
        assert kit.applied("ExtractField$Value", kit.value(schema, {"magic": None}), **keys).value == expected


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("foo.bar.baz", ("foo", "bar", "baz")),
        ("`foo.bar`.baz", ("foo.bar", "baz")),
        ("`foo`bar`.baz", ("foo`bar", "baz")),
        ("`foo\\`.bar`.baz", ("foo`.bar", "baz")),
        ("foo`bar", ("foo`bar",)),
        ("foo.", ("foo", "")),
        ("`foo`", ("foo",)),
    ],
)
def test_the_names_of_a_path(path, steps):
    assert steps_of(path) == steps


@pytest.mark.parametrize("path", ["`foo", "foo.`bar", "`foo\\`"])
def test_a_backtick_without_its_pair_is_refused(path):
    with pytest.raises(ValueError, match="Incomplete backtick pair in path"):
        steps_of(path)


class TestFlatten:
    def test_fields_of_structs_have_the_names_of_their_way(self, kit):
        inner = kit.struct(("int8", kit.INT8), ("text", kit.STRING))
        schema = kit.struct(("A", kit.struct(("B", inner))), ("C", kit.INT32))
        made = kit.applied("Flatten$Value", kit.value(schema, {"A": {"B": {"int8": 8, "text": "x"}}, "C": 1}))
        assert made.value == {"A.B.int8": 8, "A.B.text": "x", "C": 1}
        assert [name for name, _ in made.value_schema.fields] == ["A.B.int8", "A.B.text", "C"]

    def test_of_an_optional_struct_all_fields_are_optional(self, kit):
        schema = kit.struct(("B", kit.optional(kit.struct(("opt", kit.STRING)))))
        made = kit.applied("Flatten$Value", kit.value(schema, {"B": None}), delimiter="#")
        assert made.value == {"B#opt": None}
        assert made.value_schema.by_name["B#opt"].optional

    def test_a_default_of_the_struct_is_that_of_its_fields(self, kit):
        inner = kit.struct(("one", kit.optional(kit.STRING)), ("two", kit.optional(kit.STRING, "own")))
        schema = kit.struct(("B", kit.optional(inner, {"one": "outer", "two": "outer"})))
        made = kit.applied("Flatten$Value", kit.value(schema, {}))
        assert made.value_schema.by_name["B.one"].default == "outer"
        assert made.value_schema.by_name["B.two"].default == "own"
        assert made.value == {"B.one": "outer", "B.two": "outer"}

    def test_lists_stay_and_maps_are_refused_with_a_schema(self, kit):
        array = ConnectSchema("array", value_schema=kit.STRING)
        assert kit.applied("Flatten$Value", kit.value(kit.struct(("a", array)), {"a": ["x"]})).value == {"a": ["x"]}
        made = ConnectSchema("map", key_schema=kit.STRING, value_schema=kit.STRING)
        with pytest.raises(CdcError, match=r"does not support MAP for record with schemas \(for field a\)"):
            kit.applied("Flatten$Value", kit.value(kit.struct(("a", made)), {"a": {}}))

    def test_without_a_schema(self, kit):
        found = kit.applied("Flatten$Key", ConnectRecord("t", None, {"A": {"B": {"c": 1}, "d": None}, "e": [1]}))
        assert found.key == {"A.B.c": 1, "A.d": None, "e": [1]}

    def test_a_tombstone_passes(self, kit):
        assert kit.applied("Flatten$Value", kit.value(None, None)).value is None


class TestHoistField:
    def test_the_whole_becomes_a_field(self, kit):
        made = kit.applied("HoistField$Key", ConnectRecord("t", kit.INT32, 42), field="magic")
        assert (made.key_schema, made.key) == (kit.struct(("magic", kit.INT32)), {"magic": 42})
        assert kit.applied("HoistField$Key", ConnectRecord("t", None, 42), field="magic").key == {"magic": 42}

    def test_a_null_becomes_a_null_field(self, kit):
        schema = kit.optional(kit.INT32)
        made = kit.applied("HoistField$Value", kit.value(schema, None), field="magic")
        assert (made.value_schema, made.value) == (kit.struct(("magic", schema)), {"magic": None})


class TestInsertField:
    KEYS = {  # noqa: RUF012
        "topic_field": "topic_field!", "partition_field": "partition_field", "timestamp_field": "timestamp_field?",
        "static_field": "instance_id", "static_value": "my-instance-id",
    }  # fmt: skip

    def test_metadata_and_a_fixed_text(self, kit):
        schema = kit.struct(("magic", kit.optional(kit.INT64)), name="name", version=1, doc="doc")
        record = kit.value(schema, {"magic": 42}, partition=0, timestamp=1_500_000_000_000)
        made = kit.applied("InsertField$Value", record, **self.KEYS)
        assert made.value == {
            "magic": 42, "topic_field": "shop.orders", "partition_field": 0, "timestamp_field": 1_500_000_000_000,
            "instance_id": "my-instance-id",
        }  # fmt: skip
        assert (made.value_schema.name, made.value_schema.version, made.value_schema.doc) == ("name", 1, "doc")
        kinds = {name: (of.type, of.name, of.optional) for name, of in made.value_schema.fields[1:]}
        assert kinds == {
            "topic_field": ("string", None, False), "partition_field": ("int32", None, True),
            "timestamp_field": ("int64", TIMESTAMP, True), "instance_id": ("string", None, True),
        }  # fmt: skip

    def test_without_a_schema_only_what_there_is(self, kit):
        made = kit.applied("InsertField$Value", kit.value(None, {"magic": 42}, partition=0), **self.KEYS)
        assert made.value == {
            "magic": 42, "topic_field": "shop.orders", "partition_field": 0, "instance_id": "my-instance-id",
        }  # fmt: skip

    def test_a_tombstone_passes(self, kit):
        record = kit.value(None, None)
        assert kit.applied("InsertField$Value", record, **self.KEYS) is record

    def test_a_required_field_is_never_null(self, kit):
        with pytest.raises(CdcError, match='null used for required field: "p", schema type: INT32'):
            kit.applied("InsertField$Value", kit.value(kit.struct(), {}), partition_field="p!")

    def test_a_name_that_is_there_already_is_refused(self, kit):
        with pytest.raises(CdcError, match="field name duplication magic"):
            kit.applied(
                "InsertField$Value", kit.value(kit.struct(("magic", kit.INT8)), {"magic": 1}), topic_field="magic"
            )

    def test_the_offset_is_a_sinks(self, kit):
        with pytest.raises(CdcError, match=r"Only SinkRecord supported for \[field insertion\]"):
            kit.applied("InsertField$Value", kit.value(kit.struct(), {}), offset_field="o")
        assert kit.applied("InsertField$Value", kit.value(kit.struct(), {}, offset=9), offset_field="o").value == {
            "o": 9
        }


ROW = {
    "magic": 42,
    "bool": True,
    "byte": 5,
    "float": 1.5,
    "text": "hi",
    "decimal": b"\x01",
    "list": [1],
    "none": None,
}


class TestMaskField:
    def schema(self, kit):
        decimal = ConnectSchema("bytes", name=DECIMAL, version=1, parameters={"scale": "2"})
        return kit.struct(
            ("magic", kit.INT32), ("bool", kit.BOOLEAN), ("byte", kit.INT8), ("float", kit.FLOAT32), ("text", kit.STRING),
            ("decimal", decimal), ("list", ConnectSchema("array", value_schema=kit.INT32)), ("none", kit.optional(kit.INT32)),
        )  # fmt: skip

    def test_each_type_has_an_empty_value(self, kit):
        made = kit.applied(
            "MaskField$Value", kit.value(self.schema(kit), ROW), fields="bool,byte,float,text,decimal,list,none"
        )
        assert made.value == {
            "magic": 42, "bool": False, "byte": 0, "float": 0.0, "text": "", "decimal": b"\0", "list": [], "none": None,
        }  # fmt: skip
        assert made.value_schema == self.schema(kit)

    def test_a_replacement_has_the_type_of_the_field(self, kit):
        made = kit.applied(
            "MaskField$Value",
            kit.value(self.schema(kit), ROW),
            fields="byte,float,text,decimal",
            replacement="123",
        )
        assert [made.value[name] for name in ("byte", "float", "text")] == [123, 123.0, "123"]
        assert made.value["decimal"] == (12_300).to_bytes(2, "big")

    def test_a_replacement_that_does_not_fit_is_an_error_without_the_value(self, kit):
        for fields, replacement, text in (
            ("bool", "1", "class java.lang.Boolean with custom"),
            ("magic", "x", "Unable to convert x"),
        ):
            with pytest.raises(CdcError, match=text) as caught:
                kit.applied("MaskField$Value", kit.value(self.schema(kit), ROW), fields=fields, replacement=replacement)
            assert "42" not in str(caught.value)

    def test_bytes_have_no_empty_value(self, kit):
        with pytest.raises(CdcError, match=r"Cannot mask value of type: class \[B"):
            kit.applied("MaskField$Value", kit.value(kit.struct(("b", kit.BYTES)), {"b": b"1"}), fields="b")
        assert kit.applied(
            "MaskField$Value", kit.value(kit.struct(("b", kit.BYTES)), {"b": None}), fields="b"
        ).value == {"b": None}

    def test_a_tombstone_is_an_error(self, kit):
        with pytest.raises(
            CdcError, match=r"Only Map objects supported in absence of schema for \[mask fields\], found: null"
        ):
            kit.applied("MaskField$Value", kit.value(None, None), fields="b")

    def test_without_a_schema_an_absent_field_is_null(self, kit):
        assert kit.applied("MaskField$Value", kit.value(None, {"a": "x", "b": 2}), fields="a,c").value == {
            "a": "",
            "b": 2,
            "c": None,
        }


class TestReplaceField:
    def test_fields_are_left_out_and_renamed(self, kit):
        schema = kit.struct(
            ("dont", kit.STRING), ("abc", kit.INT32), ("foo", kit.BOOLEAN), ("etc", kit.STRING), name="n"
        )
        record = kit.value(schema, {"dont": "whatever", "abc": 42, "foo": True, "etc": "etc"})
        made = kit.applied("ReplaceField$Value", record, include="abc,foo", renames="abc:xyz,foo:bar")
        assert made.value == {"xyz": 42, "bar": True}
        assert made.value_schema == kit.struct(("xyz", kit.INT32), ("bar", kit.BOOLEAN), name="n")

    def test_two_fields_do_not_get_one_name(self, kit):
        record = kit.value(kit.struct(("a", kit.INT8), ("b", kit.INT8)), {"a": 1, "b": 2})
        with pytest.raises(CdcError, match="field name duplication b"):
            kit.applied("ReplaceField$Value", record, renames="a:b")

    def test_to_exclude_counts_before_to_include(self, kit):
        record = kit.value(None, {"dont": "whatever", "abc": 42, "foo": True})
        assert kit.applied("ReplaceField$Value", record, exclude="dont", include="dont,abc").value == {"abc": 42}

    def test_a_tombstone_passes(self, kit):
        record = kit.value(kit.struct(("a", kit.INT8)), None)
        assert kit.applied("ReplaceField$Value", record, exclude="a") is record

    @pytest.mark.parametrize(("replaces", "expected"), [("true", 7), ("false", None)])
    def test_a_null_counts_as_the_default_or_not(self, kit, replaces, expected):
        record = kit.value(kit.struct(("a", kit.optional(kit.INT8, 7))), {"a": None})
        assert kit.applied("ReplaceField$Value", record, renames="a:b", replace_null_with_default=replaces).value == {
            "b": expected
        }


class TestSetSchemaMetadata:
    def test_name_and_version(self, kit):
        schema = kit.struct(("f", kit.STRING), name="my.orig", version=1, doc="d")
        made = kit.applied(
            "SetSchemaMetadata$Value", kit.value(schema, {"f": "x"}), schema_name="foo", schema_version="42"
        )
        assert made.value_schema == kit.struct(("f", kit.STRING), name="foo", version=42, doc="d")
        assert made.value == {"f": "x"}

    def test_of_a_primitive_schema_too(self, kit):
        made = kit.applied("SetSchemaMetadata$Key", ConnectRecord("t", kit.STRING, "k"), schema_name="foo")
        assert (made.key_schema.name, made.key_schema.type, made.key) == ("foo", "string", "k")

    def test_without_a_schema_only_null_passes(self, kit):
        record = kit.value(None, None)
        assert kit.applied("SetSchemaMetadata$Value", record, schema_name="foo").value_schema is None
        with pytest.raises(CdcError, match=r"Schema required for \[updating schema metadata\]"):
            kit.applied("SetSchemaMetadata$Value", kit.value(None, {}), schema_name="foo")


class TestValueToKey:
    def test_fields_of_the_value_make_the_key(self, kit):
        schema = kit.struct(("a", kit.INT32), ("b", kit.INT32), ("c", kit.INT32))
        made = kit.applied("ValueToKey", kit.value(schema, {"a": 1, "b": 2, "c": 3}), fields="a,b")
        assert (made.key_schema, made.key) == (kit.struct(("a", kit.INT32), ("b", kit.INT32)), {"a": 1, "b": 2})
        assert made.value == {"a": 1, "b": 2, "c": 3}

    def test_without_a_schema(self, kit):
        made = kit.applied("ValueToKey", kit.value(None, {"a": 1, "b": 2}), fields="a,z")
        assert (made.key_schema, made.key) == (None, {"a": 1, "z": None})

    def test_a_field_that_is_not_there(self, kit):
        with pytest.raises(CdcError, match="Field does not exist: not_exist"):
            kit.applied("ValueToKey", kit.value(kit.struct(("a", kit.INT8)), {"a": 1}), fields="not_exist")

    def test_a_field_that_is_named_twice_makes_no_key(self, kit):
        with pytest.raises(CdcError, match="field name duplication a"):
            kit.applied("ValueToKey", kit.value(kit.struct(("a", kit.INT8)), {"a": 1}), fields="a,a")

    def test_a_tombstone_is_an_error(self, kit):
        with pytest.raises(CdcError, match="copying fields from value to key"):
            kit.applied("ValueToKey", kit.value(None, None), fields="a")


def test_a_schema_is_compiled_once(kit):
    chain = kit.chain("ReplaceField$Value", exclude="a")
    schema = kit.struct(("a", kit.INT8), ("b", kit.INT8))
    made = [chain.apply(kit.value(schema, {"a": 1, "b": number})) for number in range(3)]
    assert len({id(record.value_schema) for record in made}) == 1

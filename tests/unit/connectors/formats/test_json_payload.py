"""Values of JSON are what their schema says, and nothing that only looks like it."""

from __future__ import annotations

import math

import pytest
from cdcworker.connectors.formats.json_payload import ONE_OF, UNFIT, reading
from cdcworker.connectors.transforms.data import ConnectSchema, Field


def test_a_text_is_no_number():
    read = reading(ConnectSchema("float64"))
    assert (read(1), read(1.5), read(None)) == (1.0, 1.5, None)
    assert math.isnan(read("NaN"))
    assert read("-Infinity") == -math.inf
    for value in ("1.5", "nan", "inf", True, [1]):
        with pytest.raises(UNFIT):
            read(value)
    branches = tuple(Field(kind, ConnectSchema(kind)) for kind in ("float64", "string"))
    assert reading(ConnectSchema("struct", name=ONE_OF, fields=branches))("1.5") == {"string": "1.5"}


@pytest.mark.parametrize(("kind", "bits"), [("int8", 8), ("int16", 16), ("int32", 32), ("int64", 64)])
def test_integers_have_the_range_of_their_type(kind, bits):
    read = reading(ConnectSchema(kind))
    limit = 1 << bits - 1
    assert (read(limit - 1), read(-limit), read(1.0)) == (limit - 1, -limit, 1)
    for value in (limit, -limit - 1, 1.5, True):
        with pytest.raises(UNFIT):
            read(value)

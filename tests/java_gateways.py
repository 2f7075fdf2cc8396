"""Gateways to JVMs that tests start themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import py4j.java_gateway
import py4j.protocol
import pytest


@contextmanager
def untranslated_errors() -> Iterator[None]:
    """A Spark session of an earlier test leaves its own translation of exceptions, which asks Spark's JVM: here py4j's
    own errors are raised."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(py4j.java_gateway, "get_return_value", py4j.protocol.get_return_value)
        yield

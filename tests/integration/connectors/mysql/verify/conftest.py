"""The server of the source's tests, with an empty database `shop`."""

from __future__ import annotations

from ..source.conftest import reading, shop

__all__ = ["reading", "shop"]

"""Which native cores were built: without a C compiler rows are decoded in Python."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Final

from cdcworker.connectors.config.definition import ConfigKey

log = logging.getLogger(__name__)

CLOCK_CACHE_NS: Final = 1_000_000
"""For how long records carry the same current time: it is cached."""
NATIVE: Final = "decoder.native"


def built(load: Callable[[], ModuleType]) -> ModuleType | None:
    """Returns the native core that `load` imports; None where it was not built."""
    try:
        return load()
    except ImportError:
        log.warning("the native core was not built: rows are decoded in Python, several times slower")
        return None


def native_keys(group: str) -> Iterable[ConfigKey]:
    """Returns the key by which a connector does without its native core."""
    yield ConfigKey(
        NATIVE, "BOOLEAN", True, group=group, importance="LOW",
        doc="Rows are decoded by the native core where it was built. false: in Python, which gives the same records slower.",
    )  # fmt: skip

"""Masked configs that are kept: one is masked once, and not at every read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

CHARS_MAX: Final = 16 << 20
"""Characters of all kept configs: the least recently shown one is forgotten first."""
Shown = Mapping[str, tuple[str, str]]
"""By a key of a config: the name and the value under which it may be shown."""


class MaskedConfigs:
    """Keeps configs as they may be shown, by their content. Any thread may use it."""

    def __init__(self, chars_max: int = CHARS_MAX) -> None:
        self._chars_max = chars_max
        self._kept: OrderedDict[frozenset[tuple[str, str]], tuple[int, Shown]] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()

    def holds(self, config: Mapping[str, str]) -> bool:
        """Returns whether the config has been masked already."""
        return frozenset(config.items()) in self._kept

    def masked(self, config: Mapping[str, str], mask: Callable[[Mapping[str, str]], dict[str, str]]) -> dict[str, str]:
        """Returns the config as it may be shown, in its own order; `mask` is asked where that is not known yet."""
        content = frozenset(config.items())
        with self._lock:
            known = self._kept.get(content)
            if known is not None:
                self._kept.move_to_end(content)
        if known is None:
            shown = dict(zip(config, mask(config).items(), strict=True))
            self._keep(content, shown)
        else:
            shown = dict(known[1])
        return dict(shown[name] for name in config)

    def _keep(self, content: frozenset[tuple[str, str]], shown: Shown) -> None:
        size = sum(len(name) + len(value) for name, value in content)
        with self._lock:
            if size > self._chars_max or content in self._kept:
                return
            self._kept[content] = (size, shown)
            self._chars += size
            while self._chars > self._chars_max:
                self._chars -= self._kept.popitem(last=False)[1][0]

"""Which cases of a test CI runs, by the seed of the commit, and which it leaves to the long tier."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence

import pytest

MARK = "sampled"


def seed_of(config: pytest.Config) -> int:
    """The seed of the run: `--randomly-seed`, else `CDC_TEST_SEED`, else 1."""
    return int(getattr(config.option, "randomly_seed", None) or os.environ.get("CDC_TEST_SEED") or 1)


def share(names: Iterable[str], seed: int, count: int) -> set[str]:
    """Every `count`-th of these names: with each seed others, and all of them with `count` seeds in a row. Of fewer names
    than `count` there are seeds that choose none."""
    return {name for number, name in enumerate(sorted(names)) if (number + seed) % count == 0}


def leave_the_rest_to_the_long_tier(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Marks `long` what this seed does not choose of the tests marked `sampled(count)` or `sampled(count, group)`. Without a
    group the cases of each test are a group; with one, those of all tests of the module that name it. Tests that the
    command line names run in any case."""
    groups: dict[tuple[str, str], tuple[int, list[pytest.Item]]] = {}
    for item in items:
        marker, name = item.get_closest_marker(MARK), item.nodeid.partition("[")[0]
        is_asked_for = any("::" in arg and item.nodeid.startswith(arg) for arg in config.args)
        if marker and not is_asked_for and not item.get_closest_marker("long"):
            module = item.nodeid.partition("::")[0]
            key = (module, marker.args[1]) if len(marker.args) > 1 else (name, "")
            groups.setdefault(key, (int(marker.args[0]), []))[1].append(item)
    for key, (count, cases) in groups.items():
        # Groups of the same size choose different places.
        offset = zlib.crc32("".join(key).encode())
        chosen = share((case.nodeid for case in cases), seed_of(config) + offset, count)
        for case in cases:
            if case.nodeid not in chosen:
                case.add_marker(pytest.mark.long)

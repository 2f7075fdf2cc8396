"""Clusters that have settled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .several_herds import World, check_safety, cluster
from .two_workers import Cluster


@pytest.fixture(params=range(5))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = cluster(request.param)
    yield world
    check_safety(world)


@pytest.fixture
def shared() -> Callable[..., Cluster]:
    """Two workers with two tasks each."""

    def make(**options: Any) -> Cluster:
        cluster = Cluster(**options)
        cluster.join()
        assert (len(cluster.of("me")), len(cluster.of("other"))) == (2, 2)
        return cluster

    return make

"""An identity provider, and workers that people log in to there."""

from __future__ import annotations

import pytest

from tests.identity_provider.server import ACCOUNTS, ROBOT, IdentityProvider, find_program, new_key
from tests.integration.worker.identity.workers import Workers

KEY = new_key("first")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("identity")
    workers = Workers(folder)
    provider = IdentityProvider(find_program(), folder / "provider", *workers.urls[:1])
    provider.set(keys=[KEY])
    provider.start()
    workers.start(provider)
    yield provider, workers
    workers.stop()
    provider.stop()


@pytest.fixture
def provider(shared):
    """It is as it was at first whenever a test begins."""
    found, workers = shared
    found.set(keys=[KEY], accounts=ACCOUNTS, seconds=3600, ahead=0, algorithm="RS256", robots={ROBOT: ["cdc-admins"]})
    workers.clock.ahead_s += 60.0
    return found


@pytest.fixture
def workers(shared):
    found = shared[1]
    found.write()
    found.trail.clear()
    return found

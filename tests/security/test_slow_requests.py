"""Requests that take long by themselves keep nobody else waiting: not other users, and not what every request needs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import yaml
from cdcworker.worker.rest.resources import offsets
from cdcworker.worker.rest.slow_calls import AllBusy, SlowCalls
from cdcworker.worker.security.authenticate import Authenticator
from cdcworker.worker.security.credentials import hashed
from cdcworker.worker.security.gate import Gate
from cdcworker.worker.security.users import UserFile

from tests.unit.worker import conftest as rest

runner, cluster, make_herder, kept = rest.runner, rest.cluster, rest.make_herder, rest.kept
connect = rest.connect

USERS = {"ann": "0" * 12, "bob": "1" * 12}
WAIT_S = 30.0
CONFIG = {"connector.class": "fake", "host": "db", "password": "x"}
DOCTOR, OFFSETS = "/v1/connectors/c/doctor", "/connectors/c/offsets"


class Held:
    """A call outside that takes until it is released. It counts how many run, and how many ever ran at once."""

    def __init__(self) -> None:
        self._released, self._lock = threading.Event(), threading.Lock()
        self.running = self.most = 0

    def __call__(self, *_: object) -> list[Any]:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        assert self._released.wait(WAIT_S)
        with self._lock:
            self.running -= 1
        return []

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def checks():
    return Held()


@pytest.fixture
def gate(tmp_path):
    secret = hashed("S" * 43, log_n=10)
    users = [
        {"name": name, "grants": ["admin"], "tokens": [{"id": number, "hash": secret}]}
        for name, number in USERS.items()
    ]
    (tmp_path / "users.yaml").write_text(yaml.safe_dump({"users": users}))
    (tmp_path / "users.yaml").chmod(0o600)
    authenticator = Authenticator(UserFile(tmp_path / "users.yaml"), decoy_hash=secret)
    yield Gate(authenticator)
    authenticator.close()


def of(user):
    return {"Authorization": f"Bearer cdc_{USERS[user]}_{'S' * 43}"}


async def until(condition):
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


def asked(client, scenario):
    """Runs the scenario, which gets a function that asks, on a loop whose own threads are two."""

    async def run():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=client.app), base_url="http://w") as http:

            async def ask(method, path, user="ann", **options):
                answer = await http.request(method, path, headers=of(user), timeout=WAIT_S, **options)
                return answer.status_code

            return await scenario(ask)

    return asyncio.run(run())


@pytest.fixture
def slow(connect, make_herder, cluster, kept, gate, checks):
    """A worker whose doctor, live checks and plans take until they are released, and its client."""
    cluster.add("c")
    doctor, plan = Held(), Held()
    client = connect(make_herder(), offsets=kept, examine=doctor, plan=plan, gate=gate)
    yield client, doctor, plan, checks
    for one in (doctor, plan, checks):
        one.release()


def test_slow_requests_hold_no_thread_that_others_need(slow):
    client, doctor, plan, checks = slow

    async def scenario(ask):
        validate = "/connector-plugins/fake/config/validate"
        waiting = [
            *(asyncio.create_task(ask("GET", DOCTOR, user)) for user in USERS for _ in range(2)),
            *(asyncio.create_task(ask("PUT", "/connectors/c/config?dry_run=true", json=CONFIG)) for _ in range(3)),
            *(asyncio.create_task(ask("PUT", validate, json=CONFIG)) for _ in range(2)),
        ]
        await until(lambda: (doctor.running, checks.running) == (4, 2))
        async with asyncio.timeout(WAIT_S):
            assert await ask("GET", "/metrics") == 200
            assert await client.app.state.api.judge(lambda: "judged") == "judged"
        checks.release()
        await until(lambda: plan.running == 2)
        async with asyncio.timeout(WAIT_S):
            assert await ask("GET", "/metrics") == 200
        doctor.release()
        plan.release()
        return await asyncio.gather(*waiting)

    assert asked(client, scenario) == [200] * 9
    assert plan.most == 2


def test_a_user_with_slow_requests_leaves_some_to_others_and_waits_for_his_own(slow):
    client, doctor, _, _ = slow

    async def scenario(ask):
        waiting = [asyncio.create_task(ask("GET", DOCTOR)) for _ in range(5)]
        await until(lambda: doctor.running == 2)
        async with asyncio.timeout(WAIT_S):
            others = [await ask("GET", OFFSETS, "bob") for _ in range(3)]
        doctor.release()
        return [*others, *await asyncio.gather(*waiting)]

    assert asked(client, scenario) == [200] * 8
    assert doctor.most == 2


def test_a_user_whose_own_requests_do_not_end_is_told_to_come_back(slow, monkeypatch):
    client, doctor, _, _ = slow
    monkeypatch.setattr(offsets, "OWN_WAIT_S", 0.0)

    async def scenario(ask):
        waiting = [asyncio.create_task(ask("GET", DOCTOR)) for _ in range(2)]
        await until(lambda: doctor.running == 2)
        third = await ask("GET", OFFSETS)
        doctor.release()
        return [third, *await asyncio.gather(*waiting)]

    assert asked(client, scenario) == [503, 200, 200]


def test_where_nobody_has_to_say_who_asks_everything_is_for_whoever_does(connect, make_herder, cluster, kept):
    cluster.add("c")
    doctor = Held()
    client = connect(make_herder(), offsets=kept, examine=doctor)

    async def scenario(ask):
        waiting = [asyncio.create_task(ask("GET", DOCTOR)) for _ in range(4)]
        await until(lambda: doctor.running == 4)
        doctor.release()
        return await asyncio.gather(*waiting)

    assert asked(client, scenario) == [200] * 4


def test_a_thread_counts_until_its_call_ends_also_when_nobody_waits_for_it_any_more():
    held = Held()

    async def run():
        calls = SlowCalls("held", 1, 1)
        first = asyncio.create_task(calls.run(held, wait_s=WAIT_S, caller="a"))
        await until(lambda: held.running == 1)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        for caller in ("a", "b"):
            with pytest.raises(AllBusy):
                await calls.run(lambda: 1, wait_s=0.01, caller=caller)
        held.release()
        assert await calls.run(lambda: 2, wait_s=WAIT_S, caller="a", own_wait_s=WAIT_S) == 2
        calls.close()

    asyncio.run(run())

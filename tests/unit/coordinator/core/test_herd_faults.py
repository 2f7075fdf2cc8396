"""Several herds under a seeded scheduler of faults: frozen leaders, lost writes, an unreachable log, and any mix."""

from __future__ import annotations

import pytest
from cdcworker.coordinator.core import events
from cdcworker.coordinator.model import PutConnector

from .several_herds import FAILOVER_S, World, check_safety, cluster


def test_a_frozen_leader_comes_back_as_a_follower_and_its_tasks_are_fenced(world):
    old = world.leader()
    epoch = old.state.lead.epoch
    old.freeze(25.0)
    world.run(20.0)
    new = world.leader_or_none()
    others = [n for n in world.nodes.values() if n is not old and n.state.lead.role == "leading"]
    assert len(others) == 1
    assert others[0].state.lead.epoch > epoch
    assert new is not None
    world.run(10.0)
    assert old.state.lead.role == "follower"
    world.settle(FAILOVER_S)
    assert world.loads() == [4, 4, 4]


def test_an_unreachable_status_partition_kills_nobody_else_and_heals(world):
    world.broken_status = True
    world.run(30.0)
    assert not world.fenced_ids
    world.broken_status = False
    world.settle(FAILOVER_S)
    assert not world.fenced_ids


@pytest.mark.parametrize("fault", ["unknown_done", "unknown_lost", "stale", "fenced"])
def test_a_failed_write_neither_loses_nor_doubles_a_decision(world, fault):
    world.transactions.faults.append(fault)
    request_id = world.ask(PutConnector("extra", {"a": "1"}, "source"))
    world.until(lambda: request_id in world.replies, 5.0)
    reply = world.replies[request_id]
    exists = "extra" in world.cluster().connectors
    assert exists == (fault == "unknown_done")
    assert reply.outcome == ("ok" if exists else "no_leader")
    world.widths["extra"] = 1
    world.ask_until_ok(PutConnector("extra", {"a": "2"}, "source"))
    world.settle()
    assert world.cluster().connectors["extra"].version == (2 if exists else 1)


@pytest.mark.parametrize("seed", range(5))
def test_any_mix_of_faults_heals(seed):
    world = cluster(seed)
    acknowledged = {f"c{n}": "0" for n in range(4)}
    written = {name: {"0"} for name in acknowledged}
    pending: dict[str, tuple[str, str]] = {}
    for n in range(60):
        chaos(world, n)
        if leader := world.leader_or_none():
            name, value = world.random.choice(sorted(acknowledged)), f"{n}"
            request_id = world.ask(PutConnector(name, {"n": value}), leader)
            pending[request_id] = (name, value)
            written[name].add(value)
        world.run(world.random.choice([0.1, 0.5, 3.0]))
        for request_id in [r for r in pending if r in world.replies]:
            name, value = pending.pop(request_id)
            if world.replies[request_id].outcome == "ok":
                acknowledged[name] = value
    heal(world)
    world.run(40.0)
    world.settle(60.0)
    check_safety(world)
    check_acknowledged(world, acknowledged)
    up = [n for n in world.nodes.values() if n.is_up]
    assert max(world.loads()) - min(world.loads()) <= 1 or not up


def chaos(world: World, n: int) -> None:
    up = [node for node in world.nodes.values() if node.is_up]
    fault = world.random.choice(["kill", "boot", "freeze", "write", "drain", "none", "none", "boot"])
    node = world.random.choice(up) if up else None
    if fault == "kill" and len(up) > 1:
        node.kill()
    elif fault == "boot" and len(up) < 4:
        down = [w for w, n in world.nodes.items() if not n.is_up]
        world.boot(world.random.choice([*down, f"x{n}"]))
    elif fault == "freeze" and node:
        node.freeze(world.random.choice([2.0, 8.0, 15.0]))
    elif fault == "write":
        world.transactions.faults.append(world.random.choice(["unknown_done", "unknown_lost", "stale", "fenced"]))
    elif fault == "drain" and len(up) > 2:
        node.tell(events.DrainRequested())


def heal(world: World) -> None:
    world.transactions.faults.clear()
    for node in world.nodes.values():
        node.frozen_until = 0.0
    if not any(n.is_up and not n.state.me.draining for n in world.nodes.values()):
        world.boot("healer")


def check_acknowledged(world: World, acknowledged: dict[str, str]) -> None:
    """The log holds what was answered ok last, or something that was written after it."""
    state = world.cluster()
    for name, value in acknowledged.items():
        history = [r.value["config"]["n"] for r in world.configs.records if r.key == f"connector/{name}"]
        assert value in history, f"an acknowledged write of {name} is lost"
        assert state.connectors[name].config["n"] == history[-1]
        versions = [r.value["version"] for r in world.configs.records if r.key == f"connector/{name}"]
        assert versions == sorted(set(versions)), "a decision was doubled"

"""The group coordinator with generations and failover, and the member that a client library runs in the background."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from confluent_kafka import KafkaError

from .broker import OK, Code
from .engine import Proc, World
from .network import HELD, Network

SERVICE = "group"
Answer = Callable[[Any], None]
NOT_COORDINATOR = KafkaError.NOT_COORDINATOR


@dataclass(slots=True)
class Member:
    seen: float
    session_s: float
    has: bool = False
    since: int = -1
    """The generation under which it got what it has."""
    join: Answer | None = None
    sync: Answer | None = None


@dataclass
class GroupCoordinator:
    """One group, one partition to give away. What is not stored at the end of a sync is lost in a failover."""

    world: World
    rebalance_s: float = 30.0
    generation: int = 0
    state: Literal["empty", "preparing", "completing", "stable"] = "empty"
    members: dict[str, Member] = field(default_factory=dict)
    leader: str = ""
    owner: str = ""
    stored: tuple[int, dict[str, float], str, str] = (0, {}, "", "")
    fail_next: Literal["", "before_sync", "after_sync"] = ""
    failovers: int = 0
    down_until: float = 0.0
    _round: int = 0

    # --- requests ---------------------------------------------------------------------------------------------------

    def join(self, member_id: str, session_s: float, owned: tuple[bool, int], answer: Answer) -> Any:
        if self._is_down():
            return NOT_COORDINATOR, 0, None
        member = self.members.get(member_id)
        if member is None:
            member = self.members[member_id] = Member(self.world.now, session_s)
            self.world.at(session_s, self._expire, member_id, member)
        member.seen = self.world.now
        (member.has, member.since), member.join, member.sync = owned, answer, None
        if self.state != "preparing":
            self._prepare()
        self._complete_if_all()
        return HELD

    def sync(self, member_id: str, generation: int, owner: str | None, answer: Answer) -> Any:
        code = self._check(member_id, generation)
        if code != OK:
            return code, False
        if self.state == "preparing":
            return KafkaError.REBALANCE_IN_PROGRESS, False
        member = self.members[member_id]
        member.seen, member.join = self.world.now, None
        if self.state == "stable":
            return OK, self.owner == member_id
        member.sync = answer
        if member_id == self.leader and owner is not None:
            self._store(owner)
        return HELD

    def heartbeat(self, member_id: str, generation: int) -> Code:
        code = self._check(member_id, generation)
        if code != OK:
            return code
        self.members[member_id].seen = self.world.now
        return KafkaError.REBALANCE_IN_PROGRESS if self.state == "preparing" else OK

    def leave(self, member_id: str) -> Code:
        if self._is_down():
            return NOT_COORDINATOR
        if self.members.pop(member_id, None) is not None:
            self.world.trace("group", f"left {member_id}")
            self._changed()
        return OK

    def check_commit(self, member_id: str, generation: int) -> Code:
        """An offset commit inside a transaction. Metadata of nobody is taken without any check, as brokers do."""
        if self._is_down():
            return NOT_COORDINATOR
        if generation < 0 and not member_id:
            return OK
        if member_id not in self.members:
            return KafkaError.UNKNOWN_MEMBER_ID
        return OK if generation == self.generation else KafkaError.ILLEGAL_GENERATION

    # --- inside -----------------------------------------------------------------------------------------------------

    def _is_down(self) -> bool:
        return self.world.now < self.down_until

    def _check(self, member_id: str, generation: int) -> Code:
        if self._is_down():
            return NOT_COORDINATOR
        if member_id not in self.members:
            return KafkaError.UNKNOWN_MEMBER_ID
        return OK if generation == self.generation else KafkaError.ILLEGAL_GENERATION

    def _expire(self, member_id: str, member: Member) -> None:
        if self.members.get(member_id) is not member:
            return
        left = member.seen + member.session_s - self.world.now
        if member.join is not None or member.sync is not None:
            left = max(left, member.session_s)  # a held request counts as life
        if left > 1e-9:
            self.world.at(left, self._expire, member_id, member)
            return
        del self.members[member_id]
        self.world.trace("group", f"expired {member_id}")
        self._changed()

    def _changed(self) -> None:
        if not self.members:
            self.state, self.owner = "empty", ""
            self.generation += 1
        elif self.state == "preparing":
            self._complete_if_all()
        else:
            self._prepare()

    def _prepare(self) -> None:
        self.state = "preparing"
        self._round += 1
        for member in self.members.values():
            if member.sync is not None:
                answer, member.sync = member.sync, None
                answer((KafkaError.REBALANCE_IN_PROGRESS, False))
        self.world.at(self.rebalance_s, self._rebalance_over, self._round)
        self._complete_if_all()

    def _rebalance_over(self, round_: int) -> None:
        if self.state == "preparing" and self._round == round_:
            for member_id in [i for i, m in self.members.items() if m.join is None]:
                del self.members[member_id]
            self._changed()

    def _complete_if_all(self) -> None:
        if self.state != "preparing" or not self.members or any(m.join is None for m in self.members.values()):
            return
        self.generation += 1
        self.state = "completing"
        if self.leader not in self.members:
            self.leader = min(self.members)
        self.world.trace("group", f"generation {self.generation} of {sorted(self.members)}")
        owned = {i: (m.has, m.since) for i, m in self.members.items()}
        for member_id, member in list(self.members.items()):
            answer, member.join, member.seen = member.join, None, self.world.now
            assert answer is not None
            answer((OK, self.generation, owned if member_id == self.leader else None))

    def _store(self, owner: str) -> None:
        if self.fail_next == "before_sync":
            self.fail_next = ""
            self.failover()
            return
        self.owner, self.state = owner, "stable"
        self.stored = (self.generation, {i: m.session_s for i, m in self.members.items()}, self.leader, owner)
        self.world.trace("group", f"stored {self.generation} owner {owner}")
        if self.fail_next == "after_sync":
            self.fail_next = ""
            self.failover()
            return
        for member_id, member in self.members.items():
            if member.sync is not None:
                answer, member.sync = member.sync, None
                answer((OK, member_id == owner))

    def failover(self, down_s: float = 0.3) -> None:
        """Moves the coordinator to another broker with its stored state; waiting requests are never answered."""
        self.failovers += 1
        self.down_until = self.world.now + down_s
        generation, members, self.leader, self.owner = self.stored
        self.world.trace("group", f"failover to generation {generation}")
        self.generation, self._round = generation, self._round + 1
        self.members = {}
        for member_id, session_s in members.items():
            member = self.members[member_id] = Member(self.world.now, session_s)
            self.world.at(session_s, self._expire, member_id, member)
        self.state = "stable" if self.members else "empty"


class GroupClient:
    """The background half of a group member. It runs as long as its process runs, whether or not it is polled."""

    def __init__(self, proc: Proc, network: Network, group: GroupCoordinator, config: Mapping[str, Any]) -> None:
        self.proc, self.network, self.group = proc, network, group
        self.session_s = int(config["session.timeout.ms"]) / 1000
        self.beat_s = int(config["heartbeat.interval.ms"]) / 1000
        self.poll_s = int(config["max.poll.interval.ms"]) / 1000
        self.group_id = str(config["group.id"])
        self.state: Literal["joining", "syncing", "stable", "left"] = "joining"
        self.generation, self.member_id = -1, ""
        self.has, self.since = False, -1
        self.events: list[tuple[str, bool]] = []
        self.rejoin_due = False
        self.heard = self.polled = proc.mono()
        self.exceeded = False
        self.request = 0
        self.wake: Callable[[], None] = lambda: None
        self._join()
        proc.later(self.beat_s, self._beat)

    def metadata(self) -> bytes:
        """Returns the present metadata of the client, not that of the moment when it got the partition."""
        parts = (self.group_id.encode(), self.member_id.encode(), b"")
        return b"CGMDv2:" + struct.pack("<i", self.generation) + b"\0".join(parts) + b"\0"

    # --- requests ---------------------------------------------------------------------------------------------------

    def _send(self, handler: Callable[[Answer], Any], answer: Callable[[int, Any], None], again_s: float) -> None:
        self.request += 1
        number = self.request

        def answered(result: Any) -> None:
            if self.request == number and self.state != "left":
                answer(number, result)

        def respond(result: Any) -> None:
            self.network.respond(self.proc, SERVICE, answered, result)

        def again() -> None:
            if self.request == number and self.state in ("joining", "syncing"):
                self._join()

        self.network.send(self.proc, self, SERVICE, lambda: handler(respond), answered)
        self.proc.later(again_s, again)

    def _join(self) -> None:
        self.state, self.rejoin_due = "joining", False
        if not self.member_id:
            self.member_id = f"{self.proc.name}-{self.proc.world.unique()}"
        member_id, owned = self.member_id, (self.has, self.since)
        self._send(
            lambda respond: self.group.join(member_id, self.session_s, owned, respond), self._joined, self.session_s
        )

    def _joined(self, _number: int, result: Any) -> None:
        code, generation, owned = result
        if code != OK:
            self.proc.later(0.1, self._retry_join)
            return
        self.generation, self.state, self.heard = generation, "syncing", self.proc.mono()
        owner = None if owned is None else self._choose(owned)
        member_id = self.member_id
        self._send(lambda respond: self.group.sync(member_id, generation, owner, respond), self._synced, self.session_s)

    def _retry_join(self) -> None:
        if self.state == "joining":
            self._join()

    @staticmethod
    def _choose(owned: dict[str, tuple[bool, int]]) -> str:
        """Chooses the owner, sticky: the present one keeps the partition; of two, the one of the newer generation
        does."""
        holders = [(since, member_id) for member_id, (has, since) in owned.items() if has]
        return max(holders)[1] if holders else min(owned)

    def _synced(self, _number: int, result: Any) -> None:
        code, assigned = result
        if code == NOT_COORDINATOR or code == KafkaError.REBALANCE_IN_PROGRESS:
            self.state = "joining"
            self.proc.later(0.05, self._retry_join)
            return
        if code != OK:
            self._lose(code)
            return
        self.state, self.heard = "stable", self.proc.mono()
        if assigned:
            self.since = self.generation
        if self.has and not assigned:
            self.events.append(("revoke", True))
        else:
            self.events.append(("assign", assigned and not self.has))
        self.has = assigned
        self.wake()

    def _lose(self, code: Code) -> None:
        if self.has:
            self.events.append(("lost", True))
            self.wake()
        self.has, self.since, self.generation = False, -1, -1
        if code == KafkaError.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self._join()

    def _beat(self) -> None:
        if self.state == "left":
            return
        self.proc.later(self.beat_s, self._beat)
        now = self.proc.mono()
        if now - self.polled > self.poll_s and not self.exceeded:
            self.exceeded = True
            self._leave()
            self._forget()
        elif self.state == "stable" and not self.exceeded:
            if now - self.heard > self.session_s:
                self._lose(KafkaError.UNKNOWN_MEMBER_ID)
                return
            member_id, generation = self.member_id, self.generation
            self.network.send(
                self.proc,
                self,
                SERVICE,
                lambda: self.group.heartbeat(member_id, generation),
                lambda code: self._beaten(code, generation, now),
            )

    def _beaten(self, code: Code, generation: int, sent: float) -> None:
        if self.state != "stable" or generation != self.generation:
            return
        if code == OK:
            self.heard = max(self.heard, sent)
        elif code == KafkaError.REBALANCE_IN_PROGRESS:
            self.heard = max(self.heard, sent)
            if self.events:
                self.rejoin_due = True
            else:
                self._join()
        elif code != NOT_COORDINATOR:
            self._lose(code)

    def _forget(self) -> None:
        if self.has:
            self.events.append(("lost", True))
        self.has, self.since, self.generation, self.member_id = False, -1, -1, ""
        self.state, self.request = "stable", self.request + 1

    def _leave(self) -> None:
        member_id = self.member_id
        if member_id:
            self.network.send(self.proc, self, SERVICE, lambda: self.group.leave(member_id))

    def close(self) -> None:
        self._leave()
        self.state = "left"

    # --- the polled half --------------------------------------------------------------------------------------------

    def poll(self) -> tuple[list[tuple[str, bool]], bool]:
        """Returns the callbacks to run, and whether the time between polls was exceeded."""
        self.polled = self.proc.mono()
        exceeded, self.exceeded = self.exceeded, False
        events, self.events = self.events, []
        if exceeded:
            self._join()
        return events, exceeded

    def handled(self, events: list[tuple[str, bool]]) -> None:
        """Goes on after the callbacks: with the cooperative protocol a revocation is followed by another join."""
        if self.state == "stable" and (self.rejoin_due or any(kind == "revoke" for kind, _ in events)):
            self._join()

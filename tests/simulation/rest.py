"""REST clients: they ask any worker, followers forward once; every request and reply is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cdcworker.coordinator.model import DeleteConnector, PutConnector, Reply, Request, Restart

from .engine import Proc
from .workers import Node, Sim

GIVE_UP_S = 45.0
RESET_S = 0.01
"""The time after which a client notices that its worker has died; the fate of its request is then unknown."""
REFUSED = Reply("no_leader", detail="connection refused")


@dataclass(eq=False)
class Op:
    """One request of a client. `first`, `last`: how many config records were decided when it was sent and answered."""

    request: Request
    name: str
    sent: float
    first: int
    ids: list[str] = field(default_factory=list)
    """The request ids at the herders that got it; more than one if it was forwarded."""
    reply: Reply | None = None
    last: int = -1
    is_over: bool = False


class Rest:
    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.client = Proc(sim.world, "client", "outside")
        self.ops: list[Op] = []
        self.by_id: dict[str, Op] = {}
        self.decided: Callable[[], int] = lambda: 0
        self.on_answer: list[Callable[[Op], None]] = []

    def ask(self, request: Request, node: Node) -> Op:
        name = request.connector if isinstance(request, Restart) else request.name
        op = Op(request, name, self.sim.world.now, self.decided())
        self.ops.append(op)
        self.sim.trace("ask", f"{len(self.ops)} {node.worker_id} {_shown(request)}")
        answer = lambda reply: self._answered(op, reply)  # noqa: E731
        self._send(self.client, node, op, answer, hops=1)
        self.client.later(GIVE_UP_S, self._answered, op, None)
        return op

    def _send(self, proc: Proc, node: Node, op: Op, answer: Callable[[Any], None], hops: int) -> None:
        service = f"rest:{node.worker_id}"
        network = self.sim.cluster.network

        def respond(reply: Reply | None) -> None:
            if reply is not None:
                network.respond(proc, service, answer, reply)

        network.send(proc, object(), service, lambda: self._arrive(node, op, respond, hops))

    def _arrive(self, node: Node, op: Op, respond: Callable[[Reply | None], None], hops: int) -> None:
        if not node.is_up or node.herder is None or not node.herder._ready.is_set():
            respond(REFUSED)
            return
        assert node.proc is not None
        node.proc.call(self._take, node, node.proc, op, respond, hops)

    def _take(self, node: Node, proc: Proc, op: Op, respond: Callable[[Reply | None], None], hops: int) -> None:
        def done(_request_id: str, reply: Reply | None) -> None:
            leader = self.sim.nodes.get((reply.leader_url if reply else "").removeprefix("http://"))
            if reply is not None and reply.outcome == "not_leader" and leader is not None and hops:
                self._send(proc, leader, op, respond, hops - 1)
            else:
                respond(reply)

        if node.herder is None or node.proc is not proc:
            respond(None)
            return
        proc.on_end.append(lambda: self.client.later(RESET_S, self._answered, op, None))
        request_id = node.submit(op.request, done)
        if request_id:
            op.ids.append(request_id)
            self.by_id[request_id] = op

    def _answered(self, op: Op, reply: Reply | None) -> None:
        if op.is_over:
            return
        op.is_over, op.reply, op.last = True, reply, self.decided()
        self.sim.trace("answer", f"{self.ops.index(op) + 1} {reply.outcome if reply else 'nothing'}")
        for action in self.on_answer:
            action(op)


def _shown(request: Request) -> str:
    if isinstance(request, PutConnector):
        n = (request.config or {}).get("n", "")
        return f"put {request.name} n={n} {request.target_state or ''}"
    if isinstance(request, DeleteConnector):
        return f"delete {request.name}"
    return f"restart {request.connector}"

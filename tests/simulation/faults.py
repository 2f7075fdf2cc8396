"""Faults: each history draws some kinds of them and injects those at random moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cdcworker.coordinator.core.herd_state import CLOCKS_APART_S_MAX

from .engine import Proc
from .network import Rule
from .workers import NAMES, Child, Node, Sim

WORKERS_MAX = 5
TOMBSTONES_S = 20.0
"""The time for which tombstones stay in the log: longer than a reader can be cut off without folding again."""
AWAY_S_MAX, CHECK_EVERY_S = 10.0, 3.0


class Faults:
    """Each method is a kind of fault. What it breaks it heals after a while, at the latest in `heal`."""

    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.world = sim.world
        self.random = sim.world.random
        self.rules = sim.cluster.network.rules
        self.is_healed = False
        self.orphans: list[Proc] = []
        self.joined = 0

    # --- helpers ----------------------------------------------------------------------------------------------------

    def up(self) -> list[Node]:
        return [node for node in self.sim.nodes.values() if node.is_up]

    def leader(self) -> Node | None:
        leading = [n for n in self.up() if n.herder is not None and n.herder._state.lead.role in ("claimed", "leading")]
        return max(leading, key=lambda n: n.herder._state.lead.epoch if n.herder else 0, default=None)

    def any_node(self) -> Node | None:
        """Returns a random worker, often the leader: most faults matter there."""
        leader = self.leader()
        if leader is not None and self.random.random() < 0.4:
            return leader
        up = self.up()
        return self.random.choice(up) if up else None

    def children(self) -> list[Child]:
        return [child for node in self.up() for child in node.states().values() if child.proc is not None]

    def later(self, delay_s: float, action: Callable[..., Any], *args: Any) -> None:
        def unless_healed() -> None:
            if not self.is_healed:
                action(*args)

        self.world.at(delay_s, unless_healed)

    def some(self, *choices: float) -> float:
        return self.random.choice(choices) * (0.5 + self.random.random())

    def session(self, *choices: float) -> float:
        return self.some(*choices) * self.sim.setting.session_s

    def strike(self, kind: str) -> None:
        getattr(self, kind)()

    # --- crashes ----------------------------------------------------------------------------------------------------

    def kill_worker(self) -> None:
        node = self.any_node()
        if node is not None:
            self.world.fault("kill_worker", node.worker_id)
            self._kill(node)

    def _kill(self, node: Node) -> None:
        node.kill()
        self.later(self.some(0.3, 1.0, 8.0), node.boot_if_down)

    def kill_leader(self) -> None:
        node = self.leader()
        if node is not None:
            self.world.fault("kill_leader", node.worker_id)
            self._kill(node)

    def kill_at_io(self) -> None:
        """The worker dies between two steps of what it is doing."""
        node = self.any_node()
        if node is not None and node.proc is not None:
            self.world.fault("kill_at_io", node.worker_id)
            node.proc.burn = lambda: self._kill(node)
            node.proc.fuse = self.random.randrange(1, 40)

    def kill_task(self) -> None:
        children = self.children()
        if children:
            child = self.random.choice(children)
            assert child.proc is not None
            self.world.fault("kill_task", child.task.id)
            child.proc.kill("fault")

    def kill_task_at_io(self) -> None:
        for child in self.children():
            if self.random.random() < 0.5:
                assert child.proc is not None
                self.world.fault("kill_task_at_io", child.task.id)
                proc = child.proc
                proc.burn = lambda proc=proc: proc.kill("fault")
                proc.fuse = self.random.randrange(1, 25)

    def kill_fork_server(self) -> None:
        """Kills a fork server: all tasks of one worker end at once, and some later ones do not start."""
        node = self.any_node()
        if node is not None and node.launcher is not None:
            self.world.fault("kill_fork_server", node.worker_id)
            for child in list(node.states().values()):
                if child.proc is not None:
                    child.proc.kill("fork_server")
            node.launcher.broken = self.random.choice((0, 0, 1, 3))

    def orphan_tasks(self) -> None:
        """The worker dies, its tasks do not hear of it for a while."""
        node = self.any_node()
        if node is None or node.proc is None:
            return
        self.world.fault("orphan_tasks", node.worker_id)
        for proc in list(node.proc.children):
            del node.proc.children[proc]
            proc.parent = None
            self.orphans.append(proc)
            self.world.at(self.session(0.5, 2.0), proc.kill, "orphan")
        self._kill(node)

    def hang_task(self) -> None:
        children = self.children()
        if children:
            child = self.random.choice(children)
            self.world.fault("hang_task", child.task.id)
            child.hangs = True
            assert child.proc is not None
            self.world.at(self.session(1.0, 3.0), child.proc.kill, "hung")

    # --- pauses -----------------------------------------------------------------------------------------------------

    def _pause(self, proc: Proc, seconds: float) -> None:
        proc.pause()
        self.world.at(seconds, proc.resume)

    def pause_worker(self) -> None:
        """Pauses the worker alone, as SIGSTOP does: its tasks go on."""
        node = self.any_node()
        if node is not None and node.proc is not None:
            self.world.fault("pause_worker", node.worker_id)
            self._pause(node.proc, self.session(0.3, 1.0, 1.5, 2.5))

    def pause_leader(self) -> None:
        node = self.leader()
        if node is not None and node.proc is not None:
            self.world.fault("pause_leader", node.worker_id)
            self._pause(node.proc, self.session(0.5, 1.1, 1.5, 2.5))

    def pause_at_io(self) -> None:
        node = self.any_node()
        if node is not None and node.proc is not None:
            proc = node.proc
            self.world.fault("pause_at_io", node.worker_id)
            proc.burn = lambda: self._pause(proc, self.session(0.5, 1.1, 2.0))
            proc.fuse = self.random.randrange(1, 40)

    def pause_machine(self) -> None:
        node = self.any_node()
        if node is not None and node.proc is not None:
            self.world.fault("pause_machine", node.worker_id)
            seconds = self.session(0.5, 1.2, 2.0)
            for proc in (node.proc, *node.proc.children):
                self._pause(proc, seconds)

    def pause_task(self) -> None:
        children = self.children()
        if children:
            child = self.random.choice(children)
            assert child.proc is not None
            self.world.fault("pause_task", child.task.id)
            self._pause(child.proc, self.session(0.5, 1.5, 3.0))

    def pause_task_at_io(self) -> None:
        for child in self.children():
            proc = child.proc
            if proc is not None and self.random.random() < 0.4:
                self.world.fault("pause_task_at_io", child.task.id)
                proc.burn = lambda proc=proc: self._pause(proc, self.session(0.5, 1.5, 3.0))
                proc.fuse = self.random.randrange(1, 25)

    def jump_wall_clock(self) -> None:
        node = self.any_node()
        if node is not None and node.proc is not None:
            self.world.fault("jump_wall_clock", node.worker_id)
            node.proc.wall_offset_s += self.random.choice((-3600.0, -5.0, 5.0, 30.0))

    def deafen(self) -> None:
        """Makes probes of a worker find nobody, although it runs."""
        node = self.any_node()
        if node is not None:
            self.world.fault("deafen", node.worker_id)
            node.is_deaf = True
            self._cut("cut_status", f"p:{NAMES.status}/0", node.worker_id)
            self.world.at(self.session(0.5, 1.5), lambda: setattr(node, "is_deaf", False))

    def misjudge_leader(self) -> None:
        """The leader's lease stands still and some followers are refused at its address, but it runs, or is stopped."""
        node = self.leader()
        if node is None or node.proc is None:
            return
        others = [one.worker_id for one in self.up() if one is not node]
        refused = self.random.sample(others, self.random.randint(0, len(others)))
        seconds = self.session(0.3, 0.6, 1.5)
        self.world.fault("misjudge_leader", f"{node.worker_id} {refused}")
        node.refuses.update(refused)
        self.world.at(seconds, lambda: node.refuses.difference_update(refused))
        if self.random.random() < 0.3:
            self._pause(node.proc, seconds)
        else:
            self._rule(Rule(node.worker_id, f"p:{NAMES.status}/0", 1.0), seconds)

    def flap_leader(self) -> None:
        """The same again and again, whoever leads."""
        self.world.fault("flap_leader", "")
        for number in range(self.random.randint(3, 8)):
            self.later(number * self.session(0.5), self.misjudge_leader)

    # --- membership -------------------------------------------------------------------------------------------------

    def twin(self) -> None:
        """A second process under an id that is in use."""
        node = self.any_node()
        if node is not None and len(node.retired) < 2:
            self.world.fault("twin", node.worker_id)
            node.boot()

    def join(self) -> None:
        if len(self.up()) < WORKERS_MAX:
            self.joined += 1
            node = Node(self.sim, f"x{self.joined}")
            self.world.fault("join", node.worker_id)
            node.boot()

    def drain(self) -> None:
        node = self.any_node()
        if node is not None and len(self.up()) > 1:
            self.world.fault("drain", node.worker_id)
            node.drain()
            self.later(self.some(4.0, 20.0), node.boot_if_down)

    def drain_restart(self) -> None:
        """An announced restart; sometimes it never comes back."""
        node = self.any_node()
        if node is not None and len(self.up()) > 1:
            self.world.fault("drain_restart", node.worker_id)
            node.drain(restart=True)
            self.later(self.some(3.0, 8.0, 60.0), node.boot_if_down)

    # --- network ----------------------------------------------------------------------------------------------------

    def _rule(self, rule: Rule, seconds: float) -> None:
        self.rules.append(rule)
        self.world.at(seconds, lambda: self.rules.remove(rule) if rule in self.rules else None)

    def _host(self) -> str:
        node = self.any_node()
        return node.worker_id if node is not None else "*"

    def _cut(self, kind: str, service: str, host: str | None = None) -> None:
        host = host or self._host()
        is_response = self.random.random() < 0.5
        self.world.fault(kind, f"{host} {'from' if is_response else 'to'} {service}")
        self._rule(Rule(host, service, 1.0, is_response=is_response), self.session(0.3, 1.0, 2.0))

    def cut_group(self) -> None:
        self._cut("cut_group", "group")

    def cut_between(self) -> None:
        """One worker does not reach another."""
        up = self.up()
        if len(up) > 1:
            one, other = self.random.sample(up, 2)
            self._cut("cut_between", f"rest:{other.worker_id}", one.worker_id)

    def straggle_group(self) -> None:
        """Delays requests to the group's coordinator, so that some arrive when their reason is long gone."""
        self.world.fault("straggle_group", "")
        self._rule(Rule(service="group", delay_s=self.some(4.0, 12.0), host=self._host()), self.session(0.3, 0.8))

    def cut_transactions(self) -> None:
        self._cut("cut_transactions", "txn", self.random.choice((None, "*")))

    def cut_status(self) -> None:
        self._cut("cut_status", f"p:{NAMES.status}/0", self.random.choice((None, "*")))

    def cut_configs(self) -> None:
        self._cut("cut_configs", f"p:{NAMES.configs}")

    def cut_offsets(self) -> None:
        self._cut("cut_offsets", f"p:{NAMES.offsets}", "*")

    def cut_data(self) -> None:
        self._cut("cut_data", "p:data")

    def cut_rest(self) -> None:
        self._cut("cut_rest", "rest", "*")

    def cut_database(self) -> None:
        self._cut("cut_database", "db", "*")

    def isolate(self) -> None:
        """A machine that reaches nobody, in one direction or in both."""
        host = self._host()
        seconds = self.session(0.5, 1.2, 2.0)
        ways = self.random.choice(((False,), (True,), (False, True)))
        self.world.fault("isolate", f"{host} {ways}")
        for way in ways:
            self._rule(Rule(host, "*", 1.0, is_response=way), seconds)

    def cut_process(self) -> None:
        """One process of several on a machine."""
        procs = [p for n in self.up() if n.proc for p in (n.proc, *n.proc.children)]
        if procs:
            proc = self.random.choice(procs)
            self.world.fault("cut_process", proc.name)
            self._rule(Rule(proc.name, "*", 1.0, is_response=self.random.random() < 0.5), self.session(0.5, 2.0))

    def lose(self) -> None:
        self.world.fault("lose", "")
        self._rule(Rule(loss=self.some(0.05, 0.3), is_response=self.random.random() < 0.5), self.session(0.5, 1.5))

    def delay(self) -> None:
        service = self.random.choice(("*", "txn", "group", f"p:{NAMES.configs}", f"p:{NAMES.status}", "p:data"))
        self.world.fault("delay", service)
        self._rule(Rule(service=service, delay_s=self.some(0.2, 1.0, 3.0)), self.session(0.3, 1.0))

    def straggle(self) -> None:
        """Delays requests to the transaction coordinator until their sender has long timed out."""
        self.world.fault("straggle", "")
        self._rule(Rule(service="txn", delay_s=self.some(15.0, 40.0), host=self._host()), self.session(0.2, 0.5))

    def repeat(self) -> None:
        self.world.fault("repeat", "")
        for service in ("txn", "group", "p:"):
            self._rule(Rule(service=service, repeat=0.5), self.session(0.5, 1.5))

    # --- servers ----------------------------------------------------------------------------------------------------

    def fail_over_group(self) -> None:
        group = self.sim.cluster.group
        when = self.random.choice(("now", "before_sync", "after_sync"))
        self.world.fault("fail_over_group", when)
        if when == "now":
            group.failover(self.some(0.1, 1.0))
        else:
            group.fail_next = when  # type: ignore[assignment]
            if self.random.random() < 0.5 and group.state == "stable":
                group._prepare()

    def slow_markers(self) -> None:
        self.world.fault("slow_markers", "")
        transactions = self.sim.cluster.broker.transactions
        transactions.marker_delay_s = self.some(0.3, 1.5)
        self.world.at(self.session(0.5, 1.0), lambda: setattr(transactions, "marker_delay_s", 0.01))

    def compact(self) -> None:
        for topic in (NAMES.configs, NAMES.status, NAMES.offsets):
            for partition in self.sim.cluster.broker.topics[topic]:
                self.world.fault("compact", f"{partition.name} {partition.compact(TOMBSTONES_S)}")

    def restart_database(self) -> None:
        self.world.fault("restart_database", "")
        self.sim.database.restart(self.some(0.2, 2.0))

    def fail_split(self) -> None:
        names = sorted(self.sim.widths)
        if names:
            name = self.random.choice(names)
            self.world.fault("fail_split", name)
            self.sim.split_errors[name] = self.random.choice((1, 2, 4))

    def fold_again(self) -> None:
        """The worker finds that it was away for so long that tombstones may be gone."""
        node = self.any_node()
        if node is not None and node.proc is not None and node.herder is not None and node.herder._ready.is_set():
            tail = self.random.choice((node.herder._cluster._config_tail, node.herder._cluster._status_tail))
            self.world.fault("fold_again", f"{node.worker_id} {tail._name}")
            node.proc.call(tail._start_again, "fault")

    # --- the end ----------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Ends all faults: machines come up again, and second processes with one worker id end."""
        self.is_healed = True
        self.rules.clear()
        self.sim.split_errors.clear()
        self.sim.cluster.group.fail_next = ""
        self.sim.cluster.broker.transactions.marker_delay_s = 0.01
        self.sim.database.down_until = 0.0
        for proc in self.orphans:
            proc.kill("orphan")
        for proc in list(self.world.procs):
            proc.fuse = 0
            if proc.paused:
                proc.resume()
        for node in list(self.sim.nodes.values()):
            node.is_deaf = False
            node.refuses.clear()
            if node.proc is not None:
                # Clocks that stay an hour apart would let restarts expire before they are read, which is documented.
                limit_s = CLOCKS_APART_S_MAX / 2
                node.proc.wall_offset_s = max(-limit_s, min(limit_s, node.proc.wall_offset_s))
            for proc, _, _ in node.retired:
                proc.kill("twin")
            if node.launcher is not None:
                node.launcher.broken = 0
            for child in node.states().values():
                if child.hangs and child.proc is not None:
                    child.proc.kill("hung")
        self._bring_up()

    def _bring_up(self) -> None:
        """Starts machines until at least two run, also when drains end later."""
        down = [n for n in self.sim.nodes.values() if not n.is_up]
        while len(self.up()) < 2 and down:
            down.pop(0).boot()
        self.world.at(1.0, self._bring_up)


KINDS = tuple(
    name
    for name, value in vars(Faults).items()
    if callable(value)
    and not name.startswith("_")
    and name not in ("up", "leader", "any_node", "children", "later", "some", "session", "strike", "heal")
)

"""The controller: a named, detached actor on the head that keeps the wanted feeders running.

    plan        decides, 4 times a second  in a thread of its own
    ray_hosts   hosts and actors           only that thread waits for Ray
    published   endpoint file, look-up     changes as soon as the plan's list does

It holds no state that its death would lose: what a successor needs is kept in Ray, and Ray restarts
it with the same settings. While the head is away there is no controller, and the feeders go on.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from feeder.cluster import ray_hosts
from feeder.cluster.lookup_server import LookupServer, format_list
from feeder.cluster.policy.plan import ClusterPlan, Launch
from feeder.cluster.policy.start_facts import StartFacts
from feeder.cluster.settings import Kept, Request
from feeder.process.output_file import write_output

_TURN_S: Final = 0.25
_HOSTS_EVERY_S: Final = 1.0
_WATCH_S: Final = 10.0
"""How long one call to an actor waits for a change; it must end, or abandoned ones pile up."""

_END_MAX_S: Final = 12.0
"""Longer than HostActor.end takes at most."""

_ADOPTION_MAX_S: Final = 5.0
"""For adopted feeders to answer before the list is published without them."""

_log = logging.getLogger(__name__)

Published = tuple[tuple[str, str], ...]


@dataclass(slots=True, eq=False)
class _Actor:
    launch: Launch
    handle: Any = None
    seen: str = ""  # its state, as reported last
    future: Any = None  # of the call to it: its watch, or its end
    end_by_s: float | None = None  # once it is being ended


class Controller:
    """The controller of one cluster; Ray calls its public methods from several threads.

    They share no lock with the thread that takes the turns: that replaces ``_status`` as a whole,
    and reads ``_scaled``.
    """

    def __init__(self, request: bytes, address: str) -> None:
        """Begin; ``request`` is that of ``up`` as JSON, look-ups are answered at ``address``."""
        self._request = own = msgspec.json.decode(request, type=Request)
        self._plan = ClusterPlan(time.time_ns() // 1_000_000, own.feeders)
        self._scaled: int | None = None  # else what an earlier controller kept counts
        self._actors: dict[Launch, _Actor] = {}
        self._is_adopting = True
        self._adopted: set[Launch] = set()  # not heard of yet: no list is published without them
        self._publish_by_s = 0.0  # but at this time
        self._kept: Kept | None = None
        self._published: Published | None = None
        self._list_problem = ""
        self._hosts_due_s = 0.0
        self._turned_s = time.monotonic()
        self._lookup: LookupServer | None = None
        if own.lookup_port:
            self._lookup = LookupServer(address, own.lookup_port, own.secret_key, own.client_keys)
        self._status = self._describe(is_starting=True)
        threading.Thread(target=self._loop, name="feeder controller", daemon=True).start()

    def status(self) -> dict[str, Any]:
        """The state of everything after the last turn, as plain values."""
        return {**self._status, "silent_s": time.monotonic() - self._turned_s}

    def scale(self, feeders: int) -> None:
        self._scaled = feeders

    def _describe(self, *, is_starting: bool) -> dict[str, Any]:
        return {
            **self._plan.status(time.monotonic()),
            "target": self._plan.wanted if self._scaled is None else self._scaled,
            "is_starting": is_starting,
            "published": [list(each) for each in self._published or ()],
            "lookup": f"feeder://{self._lookup.address}" if self._lookup else "",
            "endpoints_file": self._request.endpoints_file,
            "list_problem": self._list_problem,
            "resource": self._request.resource,
            "config_toml": self._request.config_toml,
        }

    def _loop(self) -> None:
        while True:
            try:
                self._turn()
            except Exception:  # noqa: BLE001 -- Ray raises what it likes while its head is away
                _log.warning("a turn failed; the next one is in a second", exc_info=True)
                time.sleep(1.0)

    def _turn(self) -> None:
        if self._is_adopting:
            self._adopt()
        self._collect()
        now_s = time.monotonic()
        if now_s >= self._hosts_due_s:
            self._plan.hosts = ray_hosts.find_hosts(self._request.resource)
            self._hosts_due_s = now_s + _HOSTS_EVERY_S
        if self._scaled is not None:
            self._plan.wanted = self._scaled
        started = [_Actor(launch) for launch in self._plan.decide(now_s)]
        self._actors |= {actor.launch: actor for actor in started}
        self._turned_s = now_s
        published = self._plan.published()
        if published != self._published and (not self._adopted or now_s >= self._publish_by_s):
            self._publish(published)  # first: nothing may hold up what clients need to know
        for launch in self._plan.ending():
            self._end(self._actors[launch])
        self._start(started)
        self._status = self._describe(is_starting=False)

    def _adopt(self) -> None:
        """Take over the feeders that an earlier controller launched."""
        kept = ray_hosts.load_kept(self._request.namespace)
        if kept is not None:
            self._plan.wanted = kept.wanted
        for launch in kept.launches if kept is not None else ():
            handle = ray_hosts.find_actor(launch.actor, self._request.namespace)
            if handle is not None:
                self._actors[launch] = actor = _Actor(launch, handle)
                self._watch(actor)
                self._plan.adopt(launch, time.monotonic())
        self._adopted = {*self._actors}
        self._publish_by_s = time.monotonic() + _ADOPTION_MAX_S
        self._is_adopting = False

    def _collect(self) -> None:
        """Wait for a quarter of a second or less; pass on to the plan what actors report."""
        actors = {
            actor.future: actor for actor in self._actors.values() if actor.future is not None
        }
        if not actors:
            time.sleep(_TURN_S)
        for future in ray_hosts.wait_for([*actors], _TURN_S) if actors else ():
            actor = actors[future]
            if actor.end_by_s is None:
                self._report(actor)
            else:
                self._forget(actor, "ended")
        now_s = time.monotonic()
        for actor in [*self._actors.values()]:
            if actor.end_by_s is not None and now_s >= actor.end_by_s:
                self._forget(actor, "it did not end in time and was killed")

    def _report(self, actor: _Actor) -> None:
        try:
            state = ray_hosts.result_of(actor.future)
        except ray_hosts.AwayError:
            time.sleep(_TURN_S / 4)  # its host may be dead: Ray's head decides
            self._watch(actor)
            return
        except ray_hosts.GoneError as error:
            self._forget(actor, str(error))
            return
        actor.seen, now_s = state["state"], time.monotonic()
        if actor.seen != "starting":
            self._adopted.discard(actor.launch)
        match actor.seen:
            case "starting":
                self._plan.placed(actor.launch, now_s)
            case "ready":
                self._plan.ready(actor.launch, msgspec.convert(state["facts"], StartFacts), now_s)
            case _:
                self._plan.failed(actor.launch, str(state["last_line"]), now_s)
        if actor.seen == "ended":
            actor.future = None
        else:
            self._watch(actor)  # where that raises, the same state is read at the next turn

    def _watch(self, actor: _Actor) -> None:
        actor.future = actor.handle.watch.remote(actor.seen, _WATCH_S)

    def _forget(self, actor: _Actor, reason: str) -> None:
        """Kill what is left of a launch, and report it lost."""
        self._actors.pop(actor.launch, None)
        self._adopted.discard(actor.launch)
        self._hosts_due_s = 0.0  # a lost host must not be chosen again
        self._plan.lost(actor.launch, reason, time.monotonic())
        try:
            if actor.handle is not None:
                ray_hosts.kill_actor(actor.handle)
        except Exception:  # noqa: BLE001 -- as in the loop; what is lost must be replaced
            _log.warning("%s could not be killed", actor.launch.actor, exc_info=True)

    def _end(self, actor: _Actor) -> None:
        if actor.end_by_s is not None:
            return
        actor.future, actor.end_by_s = None, time.monotonic() + _END_MAX_S
        try:
            actor.future = actor.handle.end.remote()
        except Exception:  # noqa: BLE001 -- as in the loop; the turn's launches must be started
            _log.warning("%s could not be ended", actor.launch.actor, exc_info=True)

    def _start(self, actors: Sequence[_Actor]) -> None:
        try:
            # Before an actor exists that a later controller would not know.
            kept = Kept(wanted=self._plan.wanted, launches=tuple(self._actors))
            if kept != self._kept:
                ray_hosts.keep(kept, self._request.namespace)
                self._kept = kept
            for actor in actors:
                actor.handle = ray_hosts.start_actor(actor.launch, self._request)
                self._watch(actor)
        finally:
            for actor in actors:
                if actor.handle is None:
                    self._forget(actor, "Ray's head did not answer")

    def _publish(self, published: Published) -> None:
        text, path = format_list(published), self._request.endpoints_file
        if self._lookup is not None:
            self._lookup.publish(text)
        problem = ""
        if path:
            try:
                write_output(Path(path), text.encode())
            except OSError as error:
                problem = f"{path} cannot be written on the head: {error.strerror}"
                if problem != self._list_problem:
                    _log.warning("%s", problem)
        self._list_problem = problem
        self._published = published if not problem else None  # written again at the next turn

"""The controller: a named, detached actor on the head that keeps the wanted feeders running.

    plan.py     decides                    its thread: events in, instructions out, 4 times a second
    ray_hosts   hosts and actors           only that thread waits for Ray
    published   endpoint file, look-up     changes as soon as the plan's list does

It holds no state that its death would lose: what a successor needs is kept in Ray, and Ray restarts
it with the same settings. While the head is away there is no controller, and the feeders go on.
"""

import logging
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from feeder.cluster import ray_hosts
from feeder.cluster.binds import binds_on
from feeder.cluster.endpoint_list import format_list
from feeder.cluster.lookup_server import LookupServer
from feeder.cluster.policy.events import (
    Adopted,
    End,
    Event,
    Failed,
    Host,
    HostsSeen,
    Instruction,
    Launch,
    Lost,
    Placed,
    Ready,
    Tick,
    Wanted,
)
from feeder.cluster.policy.plan import ClusterPlan, name_feeder
from feeder.cluster.policy.plan_status import as_plain
from feeder.cluster.policy.start_facts import StartFacts
from feeder.cluster.settings import Kept, LaunchRecord, Settings
from feeder.process.output_file import write_output

_TURN_S: Final = 0.25
_HOSTS_EVERY_S: Final = 1.0
_END_MAX_S: Final = 12.0
"""Longer than DaemonRun.end takes at most."""

_ADOPTION_MAX_S: Final = 5.0
"""For adopted feeders to answer before the list is published without them."""

_log = logging.getLogger(__name__)


class Controller:
    """The controller of one cluster; Ray calls its public methods from several threads."""

    def __init__(self, settings: bytes, address: str) -> None:
        """Begin; ``settings`` are Settings as JSON, ``address`` is where look-ups are answered."""
        self._settings = msgspec.json.decode(settings, type=Settings)
        self._lock = threading.Lock()
        self._plan = ClusterPlan(time.time_ns() // 1_000_000)
        self._wanted = self._settings.feeders
        self._changed_wanted: int | None = None
        self._events: list[Event] = []  # not applied yet: Ray failed in between
        self._is_adopting = True
        self._has_hosts = False
        self._handles: dict[int, Any] = {}
        self._records: dict[int, LaunchRecord] = {}
        self._seen: dict[int, int] = {}
        self._watches: dict[Any, int] = {}
        self._ends: dict[Any, int] = {}
        self._end_by_s: dict[int, float] = {}
        self._adopted: set[int] = set()  # not heard of yet: a list without them is not published
        self._publish_by_s = 0.0
        self._kept: Kept | None = None
        self._published: tuple[tuple[str, str], ...] | None = None
        self._list_problem = ""
        self._hosts_due_s = 0.0
        self._turned_s = time.monotonic()
        self._lookup: LookupServer | None = None
        if self._settings.lookup_port:
            self._lookup = LookupServer(
                address,
                self._settings.lookup_port,
                self._settings.secret_key,
                self._settings.client_keys,
            )
        threading.Thread(target=self._loop, name="feeder controller", daemon=True).start()

    def status(self) -> dict[str, Any]:
        """Return the state of everything, as plain values."""
        with self._lock:
            status = self._plan.status(time.monotonic())
            return {
                **as_plain(status),
                "ready": status.ready,
                "target": self._wanted,
                "is_starting": not self._has_hosts,
                "published": [list(each) for each in self._published or ()],
                "lookup": f"feeder://{self._lookup.address}" if self._lookup else "",
                "endpoints_file": self._settings.endpoints_file,
                "list_problem": self._list_problem,
                "resource": self._settings.resource,
                "config_toml": self._settings.config_toml,
                "silent_s": time.monotonic() - self._turned_s,
            }

    def scale(self, feeders: int) -> None:
        """Want another number of feeders."""
        with self._lock:
            self._changed_wanted = self._wanted = feeders

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
        if now_s >= self._hosts_due_s or any(isinstance(each, Lost) for each in self._events):
            # Before the losses: a host that was lost must not be chosen again.
            self._events.insert(0, HostsSeen(ray_hosts.find_hosts(self._settings.resource)))
            self._hosts_due_s = now_s + _HOSTS_EVERY_S
        events, self._events = [*self._events, Tick()], []
        self._apply(events)
        self._has_hosts = True

    def _adopt(self) -> None:
        """Take over the feeders that an earlier controller launched."""
        kept = ray_hosts.load_kept(self._settings.namespace)
        with self._lock:
            if kept is not None and self._changed_wanted is None:
                self._wanted = kept.wanted
            events: list[Event] = [Wanted(self._wanted)]
        for record in kept.launches if kept is not None else ():
            handle = ray_hosts.find_actor(ray_hosts.name_actor(record), self._settings.namespace)
            if handle is None:
                continue
            self._handles[record.launch], self._records[record.launch] = handle, record
            self._watch(record.launch, 0)
            host = Host(record.host_id, record.address)
            events.append(Adopted(record.launch, record.slot, host))
        self._adopted = {*self._handles}
        self._publish_by_s = time.monotonic() + _ADOPTION_MAX_S
        self._apply(events)
        with self._lock:
            self._is_adopting = False

    def _collect(self) -> None:
        """Wait for a quarter of a second or less; add what actors have reported to the events.

        They are added one by one: none is lost if Ray raises in between.
        """
        events = self._events
        with self._lock:
            if self._changed_wanted is not None:
                events.append(Wanted(self._changed_wanted))
                self._changed_wanted = None
        futures = [*self._watches, *self._ends]
        if not futures:
            time.sleep(0.0 if events else _TURN_S)
            return
        for future in ray_hosts.wait_for(futures, 0.0 if events else _TURN_S):
            if future in self._ends:
                events += self._forget(self._ends[future], "ended")
            elif future in self._watches:
                events += self._report(self._watches.pop(future), future)
        overdue = [each for each, by_s in self._end_by_s.items() if time.monotonic() >= by_s]
        for launch in overdue:
            events += self._forget(launch, "it did not end in time and was killed")

    def _report(self, launch: int, future: Any) -> list[Event]:
        try:
            state = ray_hosts.result_of(future)
        except ray_hosts.AwayError:
            time.sleep(_TURN_S / 4)  # its host may be dead: Ray's head decides
            self._watch(launch, self._seen.get(launch, 0))
            return []
        except ray_hosts.GoneError as error:
            return self._forget(launch, str(error))
        version = int(state["version"])
        is_new = version != self._seen.get(launch, 0)
        self._seen[launch] = version
        if state["state"] == "ended":
            return [Failed(launch, str(state["last_line"]))]
        self._watch(launch, version)
        if not is_new:
            return []
        if state["state"] == "ready":
            return [Ready(launch, msgspec.convert(state["facts"], StartFacts))]
        return [Placed(launch)]

    def _forget(self, launch: int, reason: str) -> list[Event]:
        """Kill what is left of a launch."""
        handle = self._handles.pop(launch, None)
        self._records.pop(launch, None)
        self._seen.pop(launch, None)
        self._end_by_s.pop(launch, None)
        for table in (self._watches, self._ends):
            for future in [each for each, its in table.items() if its == launch]:
                del table[future]
        if handle is None:
            return []
        try:
            ray_hosts.kill_actor(handle)
        except Exception:  # noqa: BLE001 -- as in the loop; what is lost must be replaced
            _log.warning("feeder launch %d could not be killed", launch, exc_info=True)
        return [Lost(launch, reason)]

    def _watch(self, launch: int, seen: int) -> None:
        handle = self._handles.get(launch)
        if handle is not None:
            self._watches[handle.watch.remote(seen, ray_hosts.WATCH_S)] = launch

    def _apply(self, events: list[Event]) -> None:
        instructions: list[Instruction] = []
        with self._lock:
            for event in events:
                instructions += self._plan.handle(event, time.monotonic())
            published = self._plan.published()
            self._turned_s = time.monotonic()
        for event in events:
            if isinstance(event, Ready | Failed | Lost):
                self._adopted.discard(event.launch)
        is_known = not self._adopted or time.monotonic() >= self._publish_by_s
        if published != self._published and is_known:
            self._publish(published)  # first: nothing may hold up what clients need to know
        for instruction in instructions:
            match instruction:
                case Launch():
                    self._records[instruction.launch] = LaunchRecord(
                        launch=instruction.launch,
                        slot=instruction.slot,
                        host_id=instruction.host.id,
                        address=instruction.host.address,
                    )
                case End(launch):
                    self._end(launch)
        launches = [each for each in instructions if isinstance(each, Launch)]
        try:
            self._keep()  # before an actor exists that a later controller would not know
            while launches:
                self._launch(launches[0])
                launches.pop(0)
        finally:
            for each in launches:
                self._records.pop(each.launch, None)
                self._events.append(Lost(each.launch, "Ray's head did not answer"))

    def _keep(self) -> None:
        """Store what a later controller needs, if it has changed."""
        with self._lock:
            kept = Kept(wanted=self._wanted, launches=tuple(self._records.values()))
        if kept != self._kept and not self._is_adopting:
            ray_hosts.keep(kept, self._settings.namespace)
            self._kept = kept

    def _launch(self, launch: Launch) -> None:
        settings = self._settings
        options = ["--name", name_feeder(launch.slot)]
        for bind in binds_on(settings.binds, launch.host.address):
            options += ["--bind", bind]
        if settings.is_insecure:
            options.append("--insecure")
        self._handles[launch.launch] = ray_hosts.start_actor(
            ray_hosts.name_actor(self._records[launch.launch]),
            launch.host,
            settings.resource,
            settings.namespace,
            settings.config_toml,
            options,
        )
        self._watch(launch.launch, 0)

    def _end(self, launch: int) -> None:
        handle = self._handles.get(launch)
        if handle is None:  # it was never started
            self._events.append(Lost(launch, "ended"))
            return
        self._ends[handle.end.remote()] = launch
        self._end_by_s[launch] = time.monotonic() + _END_MAX_S
        for future in [each for each, its in self._watches.items() if its == launch]:
            del self._watches[future]

    def _publish(self, published: tuple[tuple[str, str], ...]) -> None:
        text, path = format_list(published), self._settings.endpoints_file
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
        with self._lock:
            self._list_problem = problem
            self._published = published if not problem else None  # written again at the next turn

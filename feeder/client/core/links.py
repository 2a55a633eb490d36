"""The links of a client: which endpoints have one, and what becomes of each.

The list gives feeders, and each feeder's node processes report each other (``feeders``). Of a short
list all are linked, of a long one those that are chosen there, again whenever the batches to
request have changed. A node process that cannot serve the job is left out: of a short list its link
stays until the connection ends, of a long one the feeder is avoided for AVOID_S.

Invariant: instructions are appended to ``out`` in the order in which the shell must execute them,
and a link that is hung up has no requests left.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from feeder.client.core import events
from feeder.client.core.feeders import LinkChoice, Roster, limit_links
from feeder.client.core.node_link import LinkState
from feeder.client.core.owners import Preference
from feeder.client.core.prefetch import Prefetch
from feeder.wire.messages import BatchKey, Hello, Welcome

AVOID_S: Final = 300.0
"""How long a feeder of a long list is not dialled after it was left out. Some are restarted with
other libraries meanwhile; most are not, and dialling each of them again costs a greeting."""

LOOK_AHEAD_MIN: Final = 8
"""Batches beyond those with a buffer whose owners are linked: time to connect and greet. As many as
there are buffers, as all may be freed at once; at least these."""

SPARE_S: Final = 2.0
"""How long a spare may take to answer before the first welcome, until others are tried as well."""

LONG_LIST_WINDOW: Final = 2
"""Slots to ask for at each feeder of a long list, where a client has one or two batches at a time:
slots take memory at the feeder, for hundreds of such sessions."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the client requests from its nodes; the same for the client's whole life."""

    name: str
    """The endpoints as the user gave them."""
    hello: Hello
    share_memory: bool = True
    rank: int = 0
    """The client's in its job, or any number that differs from other clients'."""
    world_size: int = 1
    """As far as it is known before the first sequence, which has the final number."""


class Links:
    """Keeps a link to each chosen endpoint."""

    def __init__(self, job: Job, prefetch: Prefetch, out: list[events.Instruction]) -> None:
        self.by_number: dict[int, LinkState] = {}
        self.is_list_long = False  # then feeders are chosen, again whenever the batches change
        self._job = job
        self._prefetch = prefetch
        self._out = out
        self._roster = Roster()
        self._choice = LinkChoice(job.rank)
        self._chosen: set[str] | None = None  # of a long list; None: all
        self._chosen_for: object = None
        self._next_link = 0
        self._avoided_until_s: dict[str, float] = {}  # by feeder
        self._same_names: set[frozenset[str]] = set()  # that were reported

    @property
    def left_out(self) -> int:
        """How many endpoints, or feeders of a long list, cannot serve this job."""
        links = [*self.by_number.values()]  # of one moment: another thread changes the dict
        incompatible = sum(link.incompatibility is not None for link in links)
        return max(incompatible, len(self._avoided_until_s))

    @property
    def are_all_left_out(self) -> bool:
        """Whether no feeder remains that may serve this job."""
        if self._chosen is None:
            return all(link.incompatibility is not None for link in self.by_number.values())
        return self._avoided_until_s.keys() >= set(self._roster.feeders)

    def name_owners(self) -> tuple[dict[int, str], Iterable[str]]:
        """The name by which each link's node process owns lanes, and all that own any.

        These are the list's names where it has some or is long, else those of the node processes
        that have answered.
        """
        is_listed = self._chosen is not None or bool(self._roster.names)
        names: dict[int, str] = {}
        answered: list[str] = []
        for number, link in self.by_number.items():
            names[number] = link.feeder if is_listed else link.node_name
            if link.welcome and link.incompatibility is None and link.duplicate_of is None:
                answered.append(link.node_name)
        return names, self._roster.feeders if is_listed else answered

    # --- Which endpoints ----------------------------------------------------------------------

    def set_listed(self, listed: events.EndpointsListed, now_s: float) -> None:
        """Follow a new list."""
        self._roster.set_listed(listed.endpoints, listed.names)
        self._chosen_for = None
        feeders = self._roster.feeders
        limit = limit_links(len(feeders), self._prefetch)
        self.is_list_long = len(feeders) > limit
        if self.is_list_long:
            served = [link.feeder for link in self.by_number.values() if link.is_served]
            avoided = self._avoided_until_s.keys() & set(feeders)
            self._avoided_until_s = {name: self._avoided_until_s[name] for name in avoided}
            self._chosen = self._choice.choose(feeders, served, avoided, limit)
            self.follow(now_s)
        else:
            self._link_all(now_s)

    def record_siblings(self, link: LinkState, welcome: Welcome, now_s: float) -> None:
        """Dial the other node processes of a daemon."""
        if self._roster.record_siblings(link.endpoint, welcome):
            self.follow(now_s)

    def choose(self, preference: Preference, now_s: float) -> bool:
        """Link to the owners of the batches to request now and next, if the list is long; return
        whether links have changed."""
        limit = limit_links(len(self._roster.feeders), self._prefetch)
        self.is_list_long = len(self._roster.feeders) > limit
        if not self.is_list_long:
            if self._chosen is None:
                return False
            self._link_all(now_s)
            return True
        over = [name for name, until_s in self._avoided_until_s.items() if until_s <= now_s]
        for name in over:
            del self._avoided_until_s[name]
        away = frozenset(link.feeder for link in self.by_number.values() if link.is_away)
        chosen_for = (self._prefetch.coming(1), away, tuple(self._avoided_until_s), limit)
        if chosen_for == self._chosen_for:
            return False
        self._chosen_for = chosen_for
        if self._chosen is None:  # lanes are owned by the list's names from now on
            self._chosen = set(self._roster.feeders)
        preference.set_names(self._roster.feeders)
        buffers = self._prefetch.buffers
        keys = self._prefetch.coming(buffers + max(LOOK_AHEAD_MIN, buffers))
        chosen = self._choice.choose(
            self._roster.feeders,
            self._find_wanted(keys, preference, away),
            self._avoided_until_s,
            limit,
        )
        linked = {link.feeder for link in self.by_number.values()}
        has_changed = chosen != self._chosen or not linked <= chosen  # some were busy
        if has_changed:
            self._chosen = chosen
            self.follow(now_s)
        return has_changed

    def _link_all(self, now_s: float) -> None:
        if self._chosen is not None:
            self._chosen = None
            self._avoided_until_s.clear()
            for link in self.by_number.values():
                link.widen(self._job.hello.window, now_s)
        self.follow(now_s)

    def replace_spares(self, now_s: float) -> None:
        """Link to further feeders of a long list while none of the spares has answered.

        Before the first welcome the dataset is not known, and so no owner.
        """
        silent = {
            link.feeder
            for link in self.by_number.values()
            if link.is_away or now_s >= link.dialled_s + SPARE_S
        }
        if self._chosen is None or self._chosen - silent:
            return
        limit = limit_links(len(self._roster.feeders), self._prefetch)
        more = self._choice.choose(self._roster.feeders, (), silent, limit)
        chosen = set(sorted(silent)[: limit - len(more)]) | more
        if chosen != self._chosen:
            self._chosen = chosen
            self.follow(now_s)

    def spares_due_s(self, now_s: float) -> float:
        """When ``replace_spares`` may find that a spare has not answered."""
        if self._chosen is None:
            return float("inf")
        due_s = [link.dialled_s + SPARE_S for link in self.by_number.values()]
        return min([at_s for at_s in due_s if at_s > now_s], default=float("inf"))

    def _find_wanted(
        self, keys: Iterable[BatchKey], preference: Preference, away: frozenset[str]
    ) -> Iterator[str]:
        """Yield the owners of batches; after one that is away, the next in the order as well."""
        for key in keys:
            for name in preference.order(key):
                if name not in self._avoided_until_s:
                    yield name
                    if name not in away:
                        break

    def follow(self, now_s: float) -> None:
        """Dial the endpoints that are new, and close the links of those that are gone."""
        chosen = self._chosen
        listed = self._roster.endpoints
        wanted = listed
        if chosen is not None:
            wanted = {endpoint: name for endpoint, name in listed.items() if name in chosen}
        for link in [*self.by_number.values()]:
            is_busy = link.endpoint in listed and self._prefetch.load(link.number) > 0
            if link.endpoint not in wanted and not is_busy:
                self.hang_up(link, now_s)
        known = {link.endpoint: link for link in self.by_number.values()}
        for endpoint, feeder in wanted.items():
            if endpoint in known:
                known[endpoint].feeder = feeder
            else:
                self.dial(endpoint, feeder, now_s)

    def dial(self, endpoint: str, feeder: str, now_s: float) -> None:
        """Open a link."""
        hello = self._job.hello
        if self._chosen is not None:
            window = min(hello.window, LONG_LIST_WINDOW)
            hello = msgspec.structs.replace(hello, window=window)
        number, self._next_link = self._next_link, self._next_link + 1
        self.by_number[number] = LinkState(
            number,
            endpoint,
            hello,
            self._prefetch,
            self._out,
            share_memory=self._job.share_memory,
            feeder=feeder,
            dialled_s=now_s,
        )
        self._out.append(events.Dial(number, endpoint))

    def hang_up(self, link: LinkState, now_s: float) -> None:
        """Close a link for good."""
        link.leave(now_s)
        del self.by_number[link.number]
        self._out.append(events.HangUp(link.number))
        self.greet_duplicates(link, now_s)

    # --- What becomes of links ----------------------------------------------------------------

    def greet_duplicates(self, lost: LinkState, now_s: float) -> None:
        """Greet the node process of a lost link over another link."""
        for link in self.by_number.values():
            if link.duplicate_of == lost.number:
                link.greet(now_s)

    def avoid(self, link: LinkState, now_s: float) -> bool:
        """Record that a node process was left out; return whether that is news of its feeder."""
        if self._chosen is None:
            return True
        is_new = link.feeder not in self._avoided_until_s
        self._avoided_until_s[link.feeder] = now_s + AVOID_S
        return is_new

    def find_duplicate(self, link: LinkState, welcome: Welcome) -> LinkState | None:
        """Another link that has a session with the same node process, or None.

        Logs once if another node process that serves this client has the same name.
        """
        for other in self.by_number.values():
            if other is not link and other.has_session_with(welcome):
                return other
        for other in self.by_number.values():
            if other is link or other.session is None or other.welcome is None:
                continue
            endpoints = frozenset((other.endpoint, link.endpoint))
            if other.welcome.node == welcome.node and endpoints not in self._same_names:
                self._same_names.add(endpoints)
                text = (
                    f"two feeders have the name {welcome.node!r}, {other.endpoint} and "
                    f"{link.endpoint}: they own the same lanes; give each a serve.name of its own"
                )
                self._out.append(events.Log(text, is_warning=True))
        return None

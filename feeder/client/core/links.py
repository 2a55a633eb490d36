"""The links of a client: which endpoints have one, and what becomes of each.

The list gives endpoints; their nodes report others. A daemon has a node process for each NUMA node,
and each of them reports where the others are, as bound on its host. The client dials them on the
host, or in the folder of sockets, by which it reached the reporting one. Where that cannot be
derived (a forwarded port) only listed endpoints are dialled. A *feeder* is a line of the list: one
endpoint with the siblings that it reports. Its name is the line's, or the endpoint where the line
gives none.

Of a list of up to ``limit`` feeders all are linked. Of a longer one the owners of the batches to
request now and next, and a few spares, which answer at once when an owner does not. Others stay
linked while there is room:

    wanted, in the order of the batches │ spares │ linked before, the latest first       ≤ limit

Links cost descriptors at the client (three or four each), and a session at the feeder. Spares are
dealt out by rank, so that every feeder is a spare for as many ranks, give or take one. Before the
first welcome no owner is known, and the spares are all there is.

A node process that cannot serve the job is left out: of a short list its link stays until the
connection ends, of a long one the feeder is avoided for AVOID_S.

Invariant: instructions are appended to ``out`` in the order in which the shell must execute them,
and a link that is hung up has no requests left.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from feeder.client.core import events
from feeder.client.core.node_link import LinkState
from feeder.client.core.owners import Preference
from feeder.client.core.prefetch import Prefetch
from feeder.wire.messages import Hello, Welcome

LINKS_MAX: Final = 64
"""Feeders that a client has links to: some 200 to 450 descriptors, as hosts have one node process
or two, where the usual limit is 1024."""

SPARES: Final = 3
SESSIONS_A_FEEDER: Final = 384
"""Sessions of one job at each feeder, on average: three quarters of the default ``clients_max``."""

AVOID_S: Final = 300.0
"""How long a feeder of a long list is not dialled after it was left out. Some are restarted with
other libraries meanwhile; most are not, and dialling each of them again costs a greeting."""

LOOK_AHEAD_MIN: Final = 8
"""Batches beyond those with a buffer whose owners are linked: time to connect and greet. As many as
there are buffers, as all may be freed at once; at least these."""

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


def find_siblings(dialled: str, welcome: Welcome) -> tuple[str, ...]:
    """The endpoints of a daemon's other node processes, reached as ``dialled`` is."""
    # Host and client agree on the port, and on a socket's name in its folder.
    mark = "/" if dialled.startswith("ipc://") else ":"
    scheme, (place, _, name) = dialled[: dialled.find("://") + 3], dialled.rpartition(mark)
    if welcome.number >= len(welcome.siblings):
        return ()
    own = welcome.siblings[welcome.number]
    # Only those that are reached by the same scheme have a name to compare.
    names = [text.rpartition(mark)[2] if text.startswith(scheme) else None for text in own]
    if name not in names:
        return ()
    position = names.index(name)
    return tuple(
        place + mark + endpoints[position].rpartition(mark)[2]
        for number, endpoints in enumerate(welcome.siblings)
        if number != welcome.number
        and position < len(endpoints)
        and endpoints[position].startswith(scheme)
    )


def limit_links(feeders: int, prefetch: Prefetch) -> int:
    """The number of ``feeders`` that a client may have links to.

    At least one for each of its buffers, which may all be of other lanes, and the spares.
    """
    even = SESSIONS_A_FEEDER * feeders // prefetch.world_size
    return max(prefetch.buffers + SPARES, min(LINKS_MAX, even))


def choose_spares(feeders: Iterable[str], rank: int, unusable: Collection[str]) -> list[str]:
    """The feeders that a rank links to besides owners: the first usable ones from its place on."""
    ordered = sorted(feeders)
    first = rank * SPARES % len(ordered) if ordered else 0
    usable = [name for name in ordered[first:] + ordered[:first] if name not in unusable]
    return usable[:SPARES]


class Links:
    """Keeps a link to each chosen endpoint."""

    def __init__(self, job: Job, prefetch: Prefetch, out: list[events.Instruction]) -> None:
        self.by_number: dict[int, LinkState] = {}
        self.feeders: tuple[str, ...] = ()  # the names of all listed ones, each once
        self.endpoints: dict[str, str] = {}
        """All endpoints, the listed ones first, each with its feeder's name."""
        self.is_list_long = False  # then feeders are chosen, again whenever the batches change
        self._job = job
        self._prefetch = prefetch
        self._out = out
        self._listed: tuple[str, ...] = ()
        self._names: Mapping[str, str] = {}  # of feeders by listed endpoint, where the list has any
        self._siblings: dict[str, tuple[str, ...]] = {}  # by the listed endpoint that reported them
        self._chosen: set[str] = set()
        self._chosen_for: object = None
        self._next_link = 0
        self._avoided_until_s: dict[str, float] = {}  # by feeder, of a long list
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
        if self.is_list_long:
            return self._avoided_until_s.keys() >= set(self.feeders)
        return all(link.incompatibility is not None for link in self.by_number.values())

    def name_owners(self) -> tuple[dict[int, str], Iterable[str]]:
        """The name by which each link's node process owns lanes, and all that own any.

        These are the list's names where it has some or is long, else those of the node processes
        that have answered.
        """
        is_listed = self.is_list_long or bool(self._names)
        names: dict[int, str] = {}
        answered: list[str] = []
        for number, link in self.by_number.items():
            names[number] = link.feeder if is_listed else link.node_name
            if link.welcome and link.incompatibility is None and link.duplicate_of is None:
                answered.append(link.node_name)
        return names, self.feeders if is_listed else answered

    # --- Which endpoints ----------------------------------------------------------------------

    def set_listed(self, listed: events.EndpointsListed) -> None:
        """Replace the list; ``choose`` follows it."""
        self._listed, self._names = listed.endpoints, listed.names
        self._find_endpoints()
        self.feeders = tuple(dict.fromkeys(self.endpoints[text] for text in self._listed))
        for name in self._avoided_until_s.keys() - set(self.feeders):
            del self._avoided_until_s[name]

    def record_siblings(self, endpoint: str, welcome: Welcome) -> None:
        """Record the siblings that the node process at an endpoint reports; ``choose`` dials
        them."""
        siblings = find_siblings(endpoint, welcome)
        if endpoint in self._listed and self._siblings.get(endpoint, ()) != siblings:
            self._siblings[endpoint] = siblings
            self._find_endpoints()

    def _find_endpoints(self) -> None:
        self._chosen_for = None
        self.endpoints = {text: self._names.get(text, text) for text in self._listed}
        for listed in self._listed:
            for sibling in self._siblings.get(listed, ()):
                self.endpoints.setdefault(sibling, self.endpoints[listed])

    def choose(self, preference: Preference | None, now_s: float) -> bool:
        """Link to the feeders that are needed now and next; return whether links have changed.

        ``preference`` is None before the first welcome.
        """
        was_long, limit = self.is_list_long, limit_links(len(self.feeders), self._prefetch)
        self.is_list_long = len(self.feeders) > limit
        if not self.is_list_long:
            if was_long:
                self._avoided_until_s.clear()
                for link in [*self.by_number.values()]:
                    self.hang_up(link, now_s)  # other sessions have whole windows
            if self._chosen_for == "all":
                return False
            self._chosen_for, self._chosen = "all", set(self.feeders)
            return self._follow(now_s)
        self._avoided_until_s = {
            name: until_s for name, until_s in self._avoided_until_s.items() if until_s > now_s
        }
        away = {link.feeder for link in self.by_number.values() if link.is_away}
        chosen_for = (self._prefetch.coming(1), away, tuple(self._avoided_until_s), limit)
        if chosen_for == self._chosen_for:
            return False
        self._chosen_for = chosen_for
        self._chosen = self._choose_of_long_list(preference, away, limit)
        return self._follow(now_s)

    def _choose_of_long_list(
        self, preference: Preference | None, away: set[str], limit: int
    ) -> set[str]:
        usable = set(self.feeders).difference(self._avoided_until_s)
        chosen: set[str] = set()
        if preference is not None:
            # They own the lanes from now on, if all were linked before.
            preference.set_names(self.feeders)
            buffers = self._prefetch.buffers
            for key in self._prefetch.coming(buffers + max(LOOK_AHEAD_MIN, buffers)):
                # The owner, and if it is away the next in the order as well.
                for name in preference.order(key):
                    if name in usable and len(chosen) < limit - SPARES:
                        chosen.add(name)
                        if name not in away:
                            break
        spares = choose_spares(self.feeders, self._job.rank, away.union(self._avoided_until_s))
        linked = [link.feeder for link in reversed(self.by_number.values())]
        for name in (*spares, *linked):
            if name in usable and len(chosen) < limit:
                chosen.add(name)
        return chosen

    def _follow(self, now_s: float) -> bool:
        """Dial the endpoints that are new, and close the links of those that are gone; return
        whether there are any."""
        wanted = {text: name for text, name in self.endpoints.items() if name in self._chosen}
        before = self.by_number.keys() | set()
        for link in [*self.by_number.values()]:
            if link.endpoint not in wanted:
                is_busy = link.endpoint in self.endpoints and self._prefetch.load(link.number) > 0
                if not is_busy:
                    self.hang_up(link, now_s)
        known = {link.endpoint: link for link in self.by_number.values()}
        for endpoint, feeder in wanted.items():
            if endpoint in known:
                known[endpoint].feeder = feeder
            else:
                self.dial(endpoint, feeder, now_s)
        return self.by_number.keys() != before

    def dial(self, endpoint: str, feeder: str, now_s: float) -> None:
        """Open a link."""
        hello = self._job.hello
        if self.is_list_long:
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
        if not self.is_list_long:
            return True
        is_new = link.feeder not in self._avoided_until_s
        self._avoided_until_s[link.feeder] = now_s + AVOID_S
        return is_new

    def find_duplicate(self, link: LinkState, welcome: Welcome) -> LinkState | None:
        """Another link that has a session with the same node process, or None.

        Logs once if another node process that serves this client has the same name.
        """
        others = [other for other in self.by_number.values() if other is not link]
        for other in others:
            if other.has_session_with(welcome):
                return other
        for other in others:
            endpoints = frozenset((other.endpoint, link.endpoint))
            is_same = other.session is not None and other.node_name == welcome.node
            if is_same and endpoints not in self._same_names:
                self._same_names.add(endpoints)
                text = (
                    f"two feeders have the name {welcome.node!r}, {other.endpoint} and "
                    f"{link.endpoint}: they own the same lanes; give each a serve.name of its own"
                )
                self._out.append(events.Log(text, is_warning=True))
        return None

"""The links of a client: which endpoints have one, and what becomes of each.

The list gives endpoints; each node reports those of the daemon's other node processes, as bound on
its host. The client dials them on the host, or in the folder of sockets, by which it reached the
reporting one; where that cannot be derived (a forwarded port) it dials listed endpoints only. A
*feeder* is a line of the list: one endpoint with the siblings that it reports, by the line's name.

Of a list of up to ``limit`` feeders all are linked. Of a longer one the owners of the batches to
request now and next, and a few spares, which answer at once when an owner does not; others stay
linked while there is room:

    wanted, in the order of the batches │ spares │ linked before, the latest first       ≤ limit

Links cost descriptors at the client (three or four each), and a session at the feeder. Spares are
dealt out by rank, so that every feeder is a spare for as many ranks, give or take one.

Invariant: a link that is hung up has no requests left.
"""

from collections.abc import Collection, Iterable, Mapping
from math import inf
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

LEFT_OUT_S: Final = 60.0
"""How long an endpoint that cannot serve the job is not dialled again. Some are restarted with
other libraries or keys meanwhile; most are not, and each attempt costs a greeting."""

LOOK_AHEAD_MIN: Final = 8
"""Batches, or as many as there are buffers, beyond those with a buffer: their owners are linked in
time to connect and greet."""

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
    place, _, name = dialled.rpartition(mark)
    scheme, siblings = dialled[: dialled.find("://") + 3], [*welcome.siblings]
    own = siblings.pop(welcome.number) if welcome.number < len(siblings) else ()
    for position, text in enumerate(own):
        if text.startswith(scheme) and text.rpartition(mark)[2] == name:
            return tuple(
                place + mark + endpoints[position].rpartition(mark)[2]
                for endpoints in siblings
                if position < len(endpoints) and endpoints[position].startswith(scheme)
            )
    return ()


def limit_links(feeders: int, prefetch: Prefetch) -> int:
    """The number of ``feeders`` that a client may have links to: at least one for each of its
    buffers, which may all be of other lanes, and the spares."""
    even = SESSIONS_A_FEEDER * feeders // prefetch.world_size
    return max(prefetch.buffers + SPARES, min(LINKS_MAX, even))


def choose_spares(feeders: Iterable[str], rank: int, usable: Collection[str]) -> list[str]:
    """The feeders that a rank links to besides owners: the first usable ones from its place on."""
    ordered = sorted(feeders)
    first = rank * SPARES % max(1, len(ordered))
    return [name for name in ordered[first:] + ordered[:first] if name in usable][:SPARES]


class Links:
    """Keeps a link to each chosen endpoint."""

    def __init__(
        self, job: Job, prefetch: Prefetch, preference: Preference, out: list[events.Instruction]
    ) -> None:
        self.by_number: dict[int, LinkState] = {}
        self.feeders: tuple[str, ...] = ()  # the names of all listed ones, each once
        self.endpoints: dict[str, str] = {}
        """All endpoints, the listed ones first, each with its feeder's name."""
        self.left_out: dict[str, tuple[str, float]] = {}
        """Endpoints that cannot serve this job: why, and when each may be dialled again."""
        self.is_list_long = False  # then feeders are chosen, again whenever the batches change
        self.have_changed = True  # links, or what is known of a node, since the last ``choose``
        self.redial_s = inf  # when a left-out endpoint may be dialled again
        self._job = job
        self._prefetch = prefetch
        self._preference = preference
        self._out = out
        self._listed: Mapping[str, str] = {}
        self._siblings: dict[str, tuple[str, ...]] = {}  # by the listed endpoint that reported them
        self._next_link = 0
        self._same_names: set[str] = set()  # that were reported

    def find_usable(self, now_s: float) -> dict[str, str]:
        """The endpoints that may serve this job, with their feeders' names."""
        known, new = self.left_out, ("", now_s)
        return {t: name for t, name in self.endpoints.items() if known.get(t, new)[1] <= now_s}

    def name_owners(self) -> Iterable[str]:
        """Name the node process of each link as an owner of lanes; the names of all owners.

        These are the list's names where it has some or is long, else those of the node processes
        that have answered.
        """
        is_listed = self.is_list_long or any(self._listed.values())
        answered: list[str] = []
        for link in self.by_number.values():
            link.owner = link.feeder if is_listed else link.node_name
            if link.welcome and link.duplicate_of is None:
                answered.append(link.node_name)
        return self.feeders if is_listed else answered

    def set_listed(self, names: Mapping[str, str]) -> None:
        """Replace the list, as EndpointsListed has it; ``choose`` follows it."""
        self._listed = names
        self._find_endpoints()

    def record_siblings(self, endpoint: str, welcome: Welcome) -> None:
        """Record the siblings that a node process reports; ``choose`` dials them."""
        if endpoint in self._listed:
            self._siblings[endpoint] = find_siblings(endpoint, welcome)
            self._find_endpoints()

    def _find_endpoints(self) -> None:
        self.have_changed = True
        self.endpoints = {text: name or text for text, name in self._listed.items()}
        self.feeders = tuple(dict.fromkeys(self.endpoints.values()))
        for listed in self._listed:
            for sibling in self._siblings.get(listed, ()):
                self.endpoints.setdefault(sibling, self.endpoints[listed])
        for text in self.left_out.keys() - self.endpoints.keys():
            del self.left_out[text]

    def choose(self, now_s: float) -> None:
        """Link to the feeders that are needed now and next."""
        was_long, limit = self.is_list_long, limit_links(len(self.feeders), self._prefetch)
        self.is_list_long = len(self.feeders) > limit
        usable = self.find_usable(now_s)
        chosen: Collection[str] = self.feeders
        if self.is_list_long:
            chosen = self._choose_of_long_list(set(usable.values()), limit)
        wanted = {text: name for text, name in usable.items() if name in chosen}
        for link in [*self.by_number.values()]:
            if was_long and not self.is_list_long:
                self._hang_up(link)  # other sessions have whole windows
            elif link.endpoint in wanted:
                link.feeder = wanted.pop(link.endpoint)
            elif link.endpoint not in usable or not self._prefetch.load(link.number):
                self._hang_up(link)
        for endpoint, feeder in wanted.items():
            self._dial(endpoint, feeder)
        redials_s = [redial_s for _, redial_s in self.left_out.values() if redial_s > now_s]
        self.redial_s = min(redials_s, default=inf)
        for link in self.by_number.values():
            if link.duplicate_of is not None:
                other = self.by_number.get(link.duplicate_of)
                if other is None or other.session is None:  # this one may reach the node
                    link.greet(now_s)

    def _choose_of_long_list(self, usable: set[str], limit: int) -> set[str]:
        away = {link.feeder for link in self.by_number.values() if link.is_away}
        names: list[str] = []
        buffers = self._prefetch.buffers
        self._preference.set_names(self.feeders)  # other names own lanes if all were linked before
        for key in self._prefetch.coming(buffers + max(LOOK_AHEAD_MIN, buffers)):
            # The owner, and if it is away the next in the order as well.
            for name in self._preference.order(key):
                if name in usable:
                    names.append(name)
                    if name not in away:
                        break
        names = [*dict.fromkeys(names)][: limit - SPARES]
        names += choose_spares(self.feeders, self._job.rank, usable - away)
        names += [link.feeder for link in reversed(self.by_number.values())]
        return set([name for name in dict.fromkeys(names) if name in usable][:limit])

    def _dial(self, endpoint: str, feeder: str) -> None:
        self.have_changed = True
        hello = self._job.hello
        if self.is_list_long:
            window = min(hello.window, LONG_LIST_WINDOW)
            hello = msgspec.structs.replace(hello, window=window)
        number, self._next_link = self._next_link, self._next_link + 1
        share = self._job.share_memory
        self.by_number[number] = LinkState(
            number, endpoint, feeder, hello, self._prefetch, self._out, share_memory=share
        )
        self._out.append(events.Dial(number, endpoint))

    def _hang_up(self, link: LinkState) -> None:
        self.have_changed = True
        link.leave()
        del self.by_number[link.number]
        self._out.append(events.HangUp(link.number))

    def leave_out(self, link: LinkState, reason: str, now_s: float) -> bool:
        """Use a node no longer, and close its link; return whether that is news."""
        is_news = link.endpoint not in self.left_out
        self.left_out[link.endpoint] = reason, now_s + LEFT_OUT_S
        self._hang_up(link)
        return is_news

    def find_duplicate(self, link: LinkState, welcome: Welcome) -> LinkState | None:
        """Another link that has a session with the same node process, or None; logs once if another
        node process has the same name."""
        for other in self.by_number.values():
            if other is link or other.session is None or other.welcome is None:
                continue
            if other.welcome.incarnation == welcome.incarnation:
                return other
            if other.node_name == welcome.node and welcome.node not in self._same_names:
                self._same_names.add(welcome.node)
                text = (
                    f"two feeders have the name {welcome.node!r}, {other.endpoint} and "
                    f"{link.endpoint}: they own the same lanes; give each a serve.name of its own"
                )
                self._out.append(events.Log(text, is_warning=True))
        return None

"""Which endpoints there are, and which feeders of a long list a client has links to.

The list gives endpoints; their nodes report others. A daemon has a node process for each NUMA node,
and each of them reports where the others are, as bound on its host. The client dials them on the
host, or in the folder of sockets, by which it reached the reporting one. Where that cannot be
derived (a forwarded port) only listed endpoints are dialled.

A *feeder* here is a line of the list: one endpoint with the siblings that it reports. Its name is
the line's, or the endpoint where the line gives none.

With a list of up to ``limit`` feeders, a client has a link to each. With a longer one it has links
to the owners of the batches that it requests now and next, and to a few spares, which answer at
once when an owner does not. Others stay linked while there is room, the most recently used ones.

    wanted, in the order of the batches │ spares │ used before, the latest first      ≤ limit

Links cost descriptors at the client (three or four each), and a session at the feeder. Spares are
dealt out by rank, so that every feeder is a spare for as many ranks, give or take one.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from feeder.client.core.prefetch import Prefetch
from feeder.wire.messages import Welcome

LINKS_MAX: Final = 64
"""Feeders that a client has links to: some 200 to 450 descriptors, as hosts have one node process
or two, where the usual limit is 1024."""

SPARES: Final = 3
SESSIONS_A_FEEDER: Final = 384
"""Sessions of one job at each feeder, on average: three quarters of the default ``clients_max``."""


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


class Roster:
    """The known endpoints, and the feeder that each belongs to."""

    def __init__(self) -> None:
        self._listed: tuple[str, ...] = ()
        self.names: Mapping[str, str] = {}
        """The feeders' names by listed endpoint, where the list gives any."""
        self._siblings: dict[str, tuple[str, ...]] = {}  # by the listed endpoint that reported them
        self.feeders: tuple[str, ...] = ()
        """The names of all listed feeders, each once."""
        self.endpoints: dict[str, str] = {}
        """All endpoints, the listed ones first, each with its feeder's name."""

    def set_listed(self, endpoints: Sequence[str], names: Mapping[str, str]) -> None:
        """Replace the list."""
        self._listed, self.names = tuple(endpoints), names
        self._find_endpoints()
        self.feeders = tuple(dict.fromkeys(self.endpoints[text] for text in self._listed))

    def record_siblings(self, endpoint: str, welcome: Welcome) -> bool:
        """Record the siblings that the node process at an endpoint reports; return whether they
        are new."""
        if endpoint not in self._listed:
            return False
        siblings = find_siblings(endpoint, welcome)
        is_new = self._siblings.get(endpoint, ()) != siblings
        self._siblings[endpoint] = siblings
        if is_new:
            self._find_endpoints()
        return is_new

    def _find_endpoints(self) -> None:
        self.endpoints = {text: self.names.get(text, text) for text in self._listed}
        for listed in self._listed:
            for sibling in self._siblings.get(listed, ()):
                self.endpoints.setdefault(sibling, self.endpoints[listed])


def limit_links(feeders: int, prefetch: Prefetch) -> int:
    """The number of ``feeders`` that a client may have links to.

    At least one for each of its buffers, which may all be of other lanes, and the spares.
    """
    even = SESSIONS_A_FEEDER * feeders // prefetch.world_size
    return max(prefetch.buffers + SPARES, min(LINKS_MAX, even))


class LinkChoice:
    """Chooses feeders by name, and remembers which were used last."""

    def __init__(self, rank: int) -> None:
        """``rank`` is the rank, or any number that differs between the clients of a job."""
        self._rank = rank
        self._used: dict[str, None] = {}  # the latest last

    def choose(
        self, feeders: Sequence[str], wanted: Iterable[str], avoided: Collection[str], limit: int
    ) -> set[str]:
        """The ``feeders`` to have links to, ``limit`` at most.

        ``wanted`` are needed for the coming batches, the first ones soonest; ``avoided`` cannot
        serve this job.
        """
        listed = set(feeders).difference(avoided)
        self._used = {name: None for name in self._used if name in listed}
        chosen: dict[str, None] = {}
        for name in wanted:
            if name in listed and len(chosen) < limit - SPARES:
                chosen[name] = None
        for name in reversed(chosen):
            self._used.pop(name, None)
            self._used[name] = None
        # This rank's spares are the next usable ones from its place in the list on.
        ordered = sorted(feeders)
        first = self._rank * SPARES % len(ordered) if ordered else 0
        spares = [name for name in ordered[first:] + ordered[:first] if name in listed][:SPARES]
        for name in (*spares, *reversed(self._used)):
            if len(chosen) >= limit:
                break
            chosen[name] = None
        while len(self._used) > limit:
            del self._used[next(iter(self._used))]
        return set(chosen)

"""The known endpoints: those that were listed, and those that their nodes report.

A daemon has a node process for each NUMA node, and each of them reports where the others are, as
bound on its host. The client dials them on the host, or in the folder of sockets, by which it
reached the reporting one. Where that cannot be derived (a forwarded port) only listed endpoints are
dialled.
"""

from collections.abc import Mapping, Sequence

from feeder.wire.messages import Welcome


def find_siblings(dialled: str, welcome: Welcome) -> tuple[str, ...]:
    """Return the endpoints of a daemon's other node processes, reached as ``dialled`` is."""
    if welcome.number >= len(welcome.siblings):
        return ()
    own = welcome.siblings[welcome.number]
    position = next((i for i, bound in enumerate(own) if _is_reached_by(bound, dialled)), None)
    if position is None:
        return ()
    return tuple(
        _redirect(endpoints[position], dialled)
        for number, endpoints in enumerate(welcome.siblings)
        if number != welcome.number
        and position < len(endpoints)
        and _scheme(endpoints[position]) == _scheme(dialled)
    )


def _is_reached_by(bound: str, dialled: str) -> bool:
    mark = "/" if dialled.startswith("ipc://") else ":"  # host and client agree on what follows it
    is_alike = _scheme(bound) == _scheme(dialled)
    return is_alike and bound.rpartition(mark)[2] == dialled.rpartition(mark)[2]


def _scheme(endpoint: str) -> str:
    return endpoint.partition("://")[0]


def _redirect(bound: str, dialled: str) -> str:
    mark = "/" if dialled.startswith("ipc://") else ":"
    return dialled.rpartition(mark)[0] + mark + bound.rpartition(mark)[2]


class Roster:
    """The known endpoints, and the feeder that each belongs to.

    A *feeder* here is a line of the list: one endpoint with the siblings that it reports. Its name
    is the line's, or the endpoint where the line gives none.
    """

    def __init__(self) -> None:
        self._listed: tuple[str, ...] = ()
        self._names: dict[str, str] = {}  # by listed endpoint, where the list gives any
        self._siblings: dict[str, tuple[str, ...]] = {}  # by the listed endpoint that reported them
        self.feeders: tuple[str, ...] = ()
        """The names of all listed feeders, each once."""
        self.endpoints: dict[str, str] = {}
        """All endpoints, the listed ones first, each with its feeder's name."""

    @property
    def has_names(self) -> bool:
        """Whether the list names any feeder: then lanes are owned by these names."""
        return bool(self._names)

    def set_listed(self, endpoints: Sequence[str], names: Mapping[str, str]) -> None:
        """Replace the list."""
        self._listed = tuple(endpoints)
        self._names = dict(names)
        named = (self._names.get(endpoint, endpoint) for endpoint in self._listed)
        self.feeders = tuple(dict.fromkeys(named))
        self._find_endpoints()

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
        found = {endpoint: self._names.get(endpoint, endpoint) for endpoint in self._listed}
        for listed, siblings in self._siblings.items():
            if listed in self._listed:
                for sibling in siblings:
                    found.setdefault(sibling, found[listed])
        self.endpoints = found

"""Which endpoints there are: those that were listed, and those that their nodes tell of.

A daemon has a node process for each NUMA node, and any one of them tells where the others are. What
it tells is as it was bound on its host; the client dials the same host, or the same folder of
sockets, by which it reached the one that told. Where that cannot be worked out (a port that was
forwarded) only what is listed is dialled.
"""

from collections.abc import Sequence

from feeder.wire.messages import Welcome


def find_siblings(dialled: str, welcome: Welcome) -> tuple[str, ...]:
    """Return where the other node processes of a daemon are, reached as the one at ``dialled``."""
    if welcome.number >= len(welcome.siblings):
        return ()
    own = welcome.siblings[welcome.number]
    place = next((i for i, bound in enumerate(own) if _is_reached_by(bound, dialled)), None)
    if place is None:
        return ()
    return tuple(
        _redirect(endpoints[place], dialled)
        for number, endpoints in enumerate(welcome.siblings)
        if number != welcome.number
        and place < len(endpoints)
        and _scheme(endpoints[place]) == _scheme(dialled)
    )


def _is_reached_by(bound: str, dialled: str) -> bool:
    mark = "/" if dialled.startswith("ipc://") else ":"  # what the host and the client both know
    is_alike = _scheme(bound) == _scheme(dialled)
    return is_alike and bound.rpartition(mark)[2] == dialled.rpartition(mark)[2]


def _scheme(endpoint: str) -> str:
    return endpoint.partition("://")[0]


def _redirect(bound: str, dialled: str) -> str:
    mark = "/" if dialled.startswith("ipc://") else ":"
    return dialled.rpartition(mark)[0] + mark + bound.rpartition(mark)[2]


class Roster:
    """The endpoints to keep links to."""

    def __init__(self) -> None:
        self._listed: tuple[str, ...] = ()
        self._siblings: dict[str, tuple[str, ...]] = {}  # by the listed endpoint that told of them

    @property
    def endpoints(self) -> tuple[str, ...]:
        """All of them, each once, the listed ones first."""
        told = (each for name in self._listed for each in self._siblings.get(name, ()))
        return tuple(dict.fromkeys((*self._listed, *told)))

    def set_listed(self, endpoints: Sequence[str]) -> None:
        """Take over a new list."""
        self._listed = tuple(endpoints)

    def hear(self, endpoint: str, welcome: Welcome) -> None:
        """Take in what the node process at an endpoint tells of its siblings."""
        if endpoint in self._listed:
            self._siblings[endpoint] = find_siblings(endpoint, welcome)

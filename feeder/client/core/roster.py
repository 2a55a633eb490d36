"""The known endpoints: those that were listed, and those that their nodes report.

A daemon has a node process for each NUMA node, and each of them reports where the others are, as
bound on its host. The client dials them on the host, or in the folder of sockets, by which it
reached the reporting one. Where that cannot be derived (a forwarded port) only listed endpoints are
dialled.
"""

from collections.abc import Sequence

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
    """The endpoints to keep links to."""

    def __init__(self) -> None:
        self._listed: tuple[str, ...] = ()
        self._siblings: dict[str, tuple[str, ...]] = {}  # by the listed endpoint that reported them

    @property
    def endpoints(self) -> tuple[str, ...]:
        """All of them, each once, the listed ones first."""
        reported = (each for name in self._listed for each in self._siblings.get(name, ()))
        return tuple(dict.fromkeys((*self._listed, *reported)))

    def set_listed(self, endpoints: Sequence[str]) -> None:
        """Replace the list."""
        self._listed = tuple(endpoints)

    def record_siblings(self, endpoint: str, welcome: Welcome) -> None:
        """Record the siblings that the node process at an endpoint reports."""
        if endpoint in self._listed:
            self._siblings[endpoint] = find_siblings(endpoint, welcome)

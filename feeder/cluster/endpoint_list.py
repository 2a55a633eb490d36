"""The published list as text: a line ``NAME ENDPOINT`` for each feeder. Pure."""

from collections.abc import Iterable


def format_list(published: Iterable[tuple[str, str]]) -> str:
    """Return the list as an endpoint file has it."""
    lines = [f"{name} {endpoint}\n" for name, endpoint in published]
    return "# Feeders of a Ray cluster, by `feeder cluster`: NAME ENDPOINT\n" + "".join(lines)

"""What ``feeder cluster`` asks its child process for, and what that answers. Pure."""

from typing import Any, Literal

from msgspec import Struct

from feeder.cluster.settings import Settings


class Request(Struct, frozen=True, kw_only=True):
    """A command to the cluster."""

    do: Literal["up", "status", "scale", "down"]
    address: str
    """HOST:PORT of Ray's head; empty for the cluster of this machine."""
    namespace: str
    timeout_s: float
    feeders: int | None = None
    """For scale."""
    settings: Settings | None = None
    """For up; 0 feeders there: one on every host."""
    config_toml: str = ""
    """That the feeders must run with; empty for any."""


class Stage(Struct, frozen=True, kw_only=True, tag="stage"):
    """What is being done, in case that it hangs."""

    doing: str


class Answer(Struct, frozen=True, kw_only=True, tag="answer"):
    """The end: a result, or an error with the name of its class."""

    result: dict[str, Any] | None = None
    error: str = ""
    kind: str = ""

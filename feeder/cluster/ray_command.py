"""One command to a Ray cluster, in a process of its own: ``ray.init`` may hang, or end the process.

    standard input    the Request, as JSON
    standard output   a Stage before each step that may hang, then the Answer: JSON, one a line
    standard error    what Ray writes

``cluster.command`` is its parent; it knows the last stage when the deadline passes.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from feeder.cluster.binds import check_binds
from feeder.cluster.ray_session import explain_death, join
from feeder.cluster.ray_settings import CONTROLLER
from feeder.cluster.request import Answer, Request, Stage
from feeder.errors import ConfigError, FeederError, PeerError, ResourceError
from feeder.process.child import die_with_parent

_POLL_S: Final = 0.2
_LATE_S: Final = 2.0
"""Before the parent's deadline, so that the reason is known."""

_FAILURES_MAX: Final = 2
"""After which a host's failure is not taken for a passing one."""


class _Command:
    """The steps of a request; every wait ends at ``by_s``."""

    def __init__(self, request: Request, report: Callable[[Stage | Answer], None]) -> None:
        self._request = request
        self._report = report
        self._by_s = time.monotonic() + request.timeout_s - _LATE_S

    def perform(self) -> dict[str, Any]:
        """Perform the request; return what to show. FeederError."""
        request = self._request
        self._connect()
        if request.do == "up":
            return self._up()
        controller = self._find_controller()
        if controller is None:
            raise PeerError(
                "no feeders run in this Ray cluster: start them with `feeder cluster up`"
            )
        status = self._status(controller)
        if request.config_toml and request.config_toml != status["config_toml"]:
            raise ConfigError(
                "the feeders run with another configuration than --config: leave --config out, or "
                "`feeder cluster down` and `up` again"
            )
        if request.do == "status":
            return status
        self._report(Stage(doing=f"{request.do}: the controller was asked"))
        self._get(controller.scale.remote(request.feeders or 0))
        if request.do == "scale":
            return self._await_feeders(controller, request.feeders or 0)
        return self._down(controller)

    def _connect(self) -> None:
        self._ray = join(
            self._request.address,
            self._request.namespace,
            lambda doing: self._report(Stage(doing=doing)),
        )

    def _find_controller(self) -> Any | None:
        from feeder.cluster.ray_hosts import find_actor

        return find_actor(CONTROLLER, self._request.namespace)

    def _get(self, future: Any) -> Any:
        try:
            return self._ray.get(future, timeout=max(0.1, self._by_s - time.monotonic()))
        except self._ray.exceptions.GetTimeoutError:
            raise PeerError(
                f"the controller did not answer within {self._request.timeout_s:g} s: see "
                "`ray status`; is its host overloaded?"
            ) from None
        except self._ray.exceptions.RayActorError as error:
            raise PeerError(f"the controller has ended: {explain_death(error)}") from None

    def _status(self, controller: Any) -> dict[str, Any]:
        return dict(self._get(controller.status.remote()))

    def _up(self) -> dict[str, Any]:
        from feeder.cluster.controller import Controller
        from feeder.cluster.ray_hosts import clear, find_head, find_hosts

        request = self._request
        if self._find_controller() is not None:
            raise ConfigError(
                "feeders run in this Ray cluster already: change their number with `feeder cluster "
                "scale N`, or `feeder cluster down` first"
            )
        assert request.settings is not None
        hosts = find_hosts(request.settings.resource)
        if not hosts:
            name = request.settings.resource
            raise ResourceError(
                f"no host of the Ray cluster offers the resource {name!r}: start Ray on the "
                f"feeders' hosts with `ray start --address=… --resources='{{\"{name}\": 1}}'`"
            )
        check_binds(request.settings.binds, [host.address for host in hosts])
        clear(request.namespace)
        settings = msgspec.structs.replace(
            request.settings, feeders=request.settings.feeders or len(hosts)
        )
        self._report(Stage(doing="starting the controller on the head"))
        controller = (
            self._ray.remote(Controller)
            .options(
                name=CONTROLLER,
                namespace=request.namespace,
                lifetime="detached",
                max_restarts=-1,
                num_cpus=0,
                max_concurrency=8,
                resources={"node:__internal_head__": 0.001},
            )
            .remote(msgspec.json.encode(settings), _lookup_host(find_head(), settings))
        )
        return self._await_feeders(controller, settings.feeders)

    def _await_feeders(self, controller: Any, wanted: int) -> dict[str, Any]:
        """Return the status once all feeders serve that can, or the time is over."""
        self._report(Stage(doing="waiting for the feeders"))
        while True:
            status = self._status(controller)
            slots = status["slots"]
            is_settled = status["wanted"] == wanted and not status["is_starting"]
            settled = is_settled and all(slot["state"] == "ready" for slot in slots)
            if settled and len(slots) == min(wanted, status["hosts"]):
                return status
            stuck = [each for each in status["problems"] if each["failures"] >= _FAILURES_MAX]
            if (
                is_settled
                and stuck
                and status["ready"] + len(stuck) >= min(wanted, status["hosts"])
            ):
                return {**status, "is_stuck": True}
            if time.monotonic() + _POLL_S >= self._by_s:
                return {**status, "is_late": True}
            time.sleep(_POLL_S)

    def _down(self, controller: Any) -> dict[str, Any]:
        from feeder.cluster.ray_hosts import clear, kill_actor

        self._report(Stage(doing="waiting for the feeders to drain"))
        status = self._status(controller)
        while status["slots"] or status["wanted"]:
            if time.monotonic() + _POLL_S >= self._by_s:
                break
            time.sleep(_POLL_S)
            status = self._status(controller)
        kill_actor(controller)
        clear(self._request.namespace)
        return status


def _lookup_host(head: str, settings: Any) -> str:
    """Return where look-ups are answered: for this machine only where nothing protects them."""
    is_open = settings.secret_key or settings.is_insecure or head.startswith("127.")
    return head if is_open else "127.0.0.1"


def main() -> int:
    """Perform the request on standard input."""
    die_with_parent(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # Ray prints

    def report(message: Stage | Answer) -> None:
        answers.write(msgspec.json.encode(message) + b"\n")

    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    try:
        answer = Answer(result=_Command(request, report).perform())
    except FeederError as error:
        answer = Answer(error=str(error), kind=type(error).__name__)
    report(answer)
    # Ray's shutdown waits for a head that may be away by now; nothing here needs it.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())

"""A process that uses Ray for ``command.RayChild``: ``ray.init`` may hang, or end the process.

    standard input    the request, and for a packing the tasks after it: JSON, one a line
    standard output   {"doing": …} before each step that may hang, then the result, or for a packing
                      those of tasks; {"failed": …} for an error
    standard error    what Ray writes, which also gets what it prints

It dies with its parent, which kills it at the deadline.
"""

import json
import logging
import os
import queue
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from feeder.cluster.command import last_line
from feeder.cluster.settings import (
    CONTROLLER,
    Request,
    check_binds,
    check_version,
    explain_missing,
)
from feeder.errors import ConfigError, FeederError, PeerError, ResourceError
from feeder.installation import install_command
from feeder.process.child import die_with_parent

Report = Callable[[dict[str, Any]], None]

_CONNECT_MAX_S: Final = 3.0
_POLL_S: Final = 0.2
_LATE_S: Final = 2.0
"""Before the parent's deadline, so that the reason is known."""

_FAILURES_MAX: Final = 2
"""After which a host's failure is not taken for a passing one."""

_RETRIES_MAX: Final = 5  # of a task whose host or worker was lost; one that crashes ends then
_WAIT_S: Final = 0.02  # an order that comes meanwhile waits as long


# --- Joining, with one line for whatever is in the way -----------------------------------------


def _join(address: str, namespace: str, report: Report) -> Any:
    """Connect to the cluster and return the module ``ray``; "" is the cluster of this machine.

    Raises ConfigError, PeerError and ResourceError.
    """
    where = address or "this machine"
    report({"doing": "importing Ray"})
    try:
        import ray
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] == "ray":
            raise explain_missing() from None
        raise
    check_version(ray.__version__)
    if address:
        report({"doing": f"connecting to {address}"})
        _check_port(address)
    report({"doing": f"joining the Ray cluster at {where}"})
    try:
        ray.init(
            address=address or "auto",
            namespace=namespace or None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        if not address and isinstance(error, ConnectionError):
            raise PeerError(
                "no Ray cluster runs on this machine: give --address HOST:PORT of one's head, set "
                "RAY_ADDRESS, or start one here with `feeder cluster up --local`"
            ) from None
        raise PeerError(
            f"the Ray cluster at {where} cannot be joined: {_first_line(error)}"
        ) from None
    report({"doing": "waiting for the cluster's head"})
    return ray


def _check_port(address: str) -> None:
    """Raise PeerError where nothing listens; a hanging head is left to the deadline."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigError(f"{address!r} is no address of a Ray cluster: write HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_MAX_S).close()
    except OSError as error:
        raise PeerError(
            f"no Ray cluster answers at {address}: {error.strerror or error}; is its head running "
            "(`ray start --head`)?"
        ) from None


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


# --- A command -----------------------------------------------------------------------------------


class _Command:
    """The steps of a request; every wait ends at ``by_s``."""

    def __init__(self, request: Request, report: Report) -> None:
        self._request = request
        self._report = report
        self._by_s = time.monotonic() + request.timeout_s - _LATE_S

    def perform(self) -> dict[str, Any]:
        """Perform the request; return what to show. FeederError."""
        request = self._request
        self._ray = _join(request.address, request.namespace, self._report)
        from feeder.cluster import ray_hosts  # which imports Ray

        self._hosts = ray_hosts
        self._controller = ray_hosts.find_actor(CONTROLLER, request.namespace)
        if request.do == "up":
            if self._controller is not None:
                raise ConfigError(
                    "feeders run in this Ray cluster already: change their number with `feeder "
                    "cluster scale N`, or `feeder cluster down` first"
                )
            return self._up()
        if self._controller is None:
            raise PeerError(
                "no feeders run in this Ray cluster: start them with `feeder cluster up`"
            )
        status: dict[str, Any] = self._call("status")
        if request.config_toml and request.config_toml != status["config_toml"]:
            raise ConfigError(
                "the feeders run with another configuration than --config: leave --config out, or "
                "`feeder cluster down` and `up` again"
            )
        if request.do == "status":
            return status
        self._report({"doing": f"{request.do}: the controller was asked"})
        self._call("scale", request.feeders)
        return self._await_feeders(request.feeders) if request.do == "scale" else self._down()

    def _call(self, method: str, *arguments: int) -> Any:
        future = getattr(self._controller, method).remote(*arguments)
        try:
            return self._ray.get(future, timeout=max(0.1, self._by_s - time.monotonic()))
        except self._ray.exceptions.GetTimeoutError:
            raise PeerError(
                f"the controller did not answer within {self._request.timeout_s:g} s: see "
                "`ray status`; is its host overloaded?"
            ) from None
        except self._ray.exceptions.RayActorError as error:
            own = re.findall(r"feeder\.errors\.\w+: (.+)", str(error))
            reason = own[-1] if own else _first_line(error)
            raise PeerError(f"the controller has ended: {reason}") from None

    def _poll(self) -> Iterator[dict[str, Any]]:
        """The controller's status, until the time is over."""
        while True:
            yield self._call("status")
            if time.monotonic() + _POLL_S >= self._by_s:
                return
            time.sleep(_POLL_S)

    def _up(self) -> dict[str, Any]:
        from feeder.cluster.controller import Controller

        request = self._request
        hosts = self._hosts.find_hosts(request.resource)
        if not hosts:
            name = request.resource
            raise ResourceError(
                f"no host of the Ray cluster offers the resource {name!r}: start Ray on the "
                f"feeders' hosts with `ray start --address=… --resources='{{\"{name}\": 1}}'`"
            )
        check_binds(request.binds, [*hosts.values()])
        self._hosts.clear(request.namespace)
        request = msgspec.structs.replace(request, feeders=request.feeders or len(hosts))
        self._report({"doing": "starting the controller on the head"})
        head = self._hosts.find_head()
        # Where nothing protects look-ups, they are answered for this machine only.
        is_safe = request.secret_key or request.is_insecure or head.startswith("127.")
        self._controller = (
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
            .remote(msgspec.json.encode(request), head if is_safe else "127.0.0.1")
        )
        return self._await_feeders(request.feeders)

    def _await_feeders(self, wanted: int) -> dict[str, Any]:
        """The status once all feeders serve that can, or the time is over."""
        self._report({"doing": "waiting for the feeders"})
        status: dict[str, Any] = {}
        for status in self._poll():
            if status["wanted"] != wanted or status["is_starting"]:
                continue
            possible, ready = min(wanted, status["hosts"]), status["ready"]
            if len(status["slots"]) == ready == possible:
                return status
            stuck = [each for each in status["problems"] if each["failures"] >= _FAILURES_MAX]
            if stuck and ready + len(stuck) >= possible:
                return {**status, "is_stuck": True}
        return {**status, "is_late": True}

    def _down(self) -> dict[str, Any]:
        self._report({"doing": "waiting for the feeders to drain"})
        for status in self._poll():
            if not status["slots"] and not status["wanted"]:
                break
        self._hosts.kill_actor(self._controller)
        self._hosts.clear(self._request.namespace)
        return {}


# --- The tasks of a packing ----------------------------------------------------------------------


def _pack(request: dict[str, Any], report: Report) -> None:
    """Perform the orders of ``pack_pool``, until the parent closes the input."""
    ray = _join(request["address"], "", report)
    from feeder.cluster.pack_pool import perform_task

    orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            orders.put(json.loads(line))
        orders.put(None)

    threading.Thread(target=read, daemon=True).start()
    report({"cpus": ray.cluster_resources().get("CPU", 1)})
    # Only the loss of a host or worker is repeated; a task returns its own errors.
    task = ray.remote(perform_task).options(
        num_cpus=1, max_retries=_RETRIES_MAX, scheduling_strategy="SPREAD"
    )
    setup = ray.put(request["setup"])
    running: list[Any] = []
    while True:
        try:
            order = orders.get(block=not running)
            if order is None:
                return
            running.append(task.remote(request["module"], setup, order))
        except queue.Empty:
            done, running = ray.wait(running, timeout=_WAIT_S)
            for future in done:
                for message in _messages_of(ray, future):
                    report(message)


def _messages_of(ray: Any, future: Any) -> list[dict[str, Any]]:
    try:
        return list(ray.get(future))
    except ray.exceptions.RayError as error:
        text = (
            f"a Ray task failed: {last_line(str(error) or type(error).__name__)}; is Feeder "
            f"installed on every host ({install_command('daemon', 'ray')})?"
        )
        return [{"kind": "error", "error": "ResourceError", "message": text}]


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # Ray prints

    def report(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message).encode() + b"\n")

    request = json.loads(sys.stdin.buffer.readline())
    try:
        if request["do"] == "pack":
            _pack(request, report)
        else:
            report(_Command(msgspec.convert(request, Request), report).perform())
    except FeederError as error:
        report({"failed": type(error).__name__, "text": str(error)})
    # Ray's shutdown waits for a head that may be away by now; nothing here needs it.
    os._exit(0)


if __name__ == "__main__":
    main()

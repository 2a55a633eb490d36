"""Asks a cluster's controller for the list of endpoints: ``feeder://HOST:PORT``.

    client (DEALER)                             controller (ROUTER)
      b"feeder-endpoints/1" ─────────────────►
      ◄───────────────── b"feeder-endpoints/1\\n" and a list as in an endpoint file

With keys the connection is CURVE, as that to a feeder. Each look-up is a connection of its own, so
that a controller that comes back at the same address is found again. Nothing here waits longer than
DEADLINE_S.
"""

import errno
import time
from typing import Final

import zmq

from feeder.client.connection import open_context
from feeder.client.endpoint_list import FILE_BYTES_MAX, Listing, parse_list
from feeder.errors import ConfigError, FeederError
from feeder.process.name_lookup import resolve_endpoint
from feeder.security.handshake import dial, probe_mechanism
from feeder.security.keys import ClientKeys

REQUEST: Final = b"feeder-endpoints/1"
ANSWER_BYTES_MAX: Final = FILE_BYTES_MAX + len(REQUEST) + 1
INTERVAL_S: Final = 2.0
"""Between look-ups: a feeder that was replaced is found at the next one."""
DEADLINE_S: Final = 3.0

_HEAD: Final = REQUEST + b"\n"


class LookupSource:
    """The endpoints that the controller at HOST:PORT publishes."""

    interval_s = INTERVAL_S

    def __init__(self, address: str, keys: ClientKeys | None) -> None:
        """``address`` is HOST:PORT, already checked; connects to nothing yet."""
        self._name = f"feeder://{address}"
        self._endpoint = f"tcp://{address}"
        self._keys = keys

    def read(self) -> Listing:
        """Return the endpoints; OSError without an answer, ConfigError for a malformed one."""
        return parse_answer(self.fetch(), self._name)

    def fetch(self) -> bytes:
        """Return the answer as it came; OSError if none came within DEADLINE_S."""
        deadline_s = time.monotonic() + DEADLINE_S
        try:
            endpoint = resolve_endpoint(self._endpoint, DEADLINE_S)
            context = open_context(self._name)
        except FeederError as error:
            raise OSError(errno.EHOSTUNREACH, str(error)) from None
        try:
            with context.socket(zmq.DEALER) as dealer:
                dealer.set(zmq.LINGER, 0)
                dealer.set(zmq.MAXMSGSIZE, ANSWER_BYTES_MAX)
                dial(dealer, endpoint, self._keys)
                dealer.send(REQUEST)
                if dealer.poll(max(1, round((deadline_s - time.monotonic()) * 1000))):
                    return bytes(dealer.recv_multipart()[-1])
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"no look-up is possible: {error.strerror}") from None
        finally:
            context.destroy(linger=0)
        raise OSError(errno.ETIMEDOUT, self._explain_silence(endpoint))

    def _explain_silence(self, endpoint: str) -> str:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        mechanism = probe_mechanism((host.strip("[]"), int(port)))
        if mechanism == "CURVE" and self._keys is None:
            return "the controller accepts only clients with keys: give server_key and client_key"
        if mechanism == "CURVE":
            return (
                "the controller does not accept these keys: check that server_key is its public "
                "key and that client_key is on its list"
            )
        if mechanism == "NULL" and self._keys is not None:
            return "the controller has no keys: leave out server_key and client_key, or set its own"
        return f"no controller answered within {DEADLINE_S:g} s: see `feeder cluster status`"


def parse_answer(data: bytes, where: str) -> Listing:
    """Return the endpoints in an answer; ConfigError names ``where`` for a malformed one."""
    if not data.startswith(_HEAD):
        raise ConfigError(
            f"{where}: what answers is no controller of a cluster: give the address that "
            "`feeder cluster status` shows"
        )
    return parse_list(data.removeprefix(_HEAD), where)


def format_answer(listed: str) -> bytes:
    """Return the answer that carries a list."""
    return _HEAD + listed.encode()

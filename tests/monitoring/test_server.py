"""The HTTP server of the metrics, what clients may do to it, and which states are unhealthy."""

import contextlib
import http.client
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.daemon.node_process import HEARTBEATS, START_DEADLINE_S
from feeder.errors import ConfigError, ResourceError
from feeder.metrics.report import HostReport
from feeder.monitoring.server import (
    CONNECTIONS_MAX,
    HEAD_BYTES_MAX,
    REPORT_MAX_S,
    STATES_MAX_S,
    MetricsServer,
    find_trouble,
    is_authorized,
    parse_head,
    read_token,
)
from feeder.process.backoff import BACKOFF_MAX_S
from tests.monitoring.reports import busy_report, host_report, node_in
from tests.support.daemon import DEADLINE_S, wait_until

HOST = "127.0.0.1"
TOKEN = "0123456789abcdef"
Start = Callable[..., MetricsServer]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers, which end with the test; their threads too."""
    servers: list[MetricsServer] = []

    def start(
        report: HostReport | None = None, token: Path | None = None, deadline_s: float = 60.0
    ) -> MetricsServer:
        found = report or busy_report(time.monotonic())
        server = MetricsServer(HOST, 0, lambda: found, token, deadline_s=deadline_s)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.close()
        server.close()
    assert "metrics" not in {thread.name for thread in threading.enumerate()}


def port_of(server: MetricsServer) -> int:
    host, _, port = server.address.rpartition(":")
    assert host == HOST
    return int(port)


def dial(server: MetricsServer) -> socket.socket:
    return socket.create_connection((HOST, port_of(server)), DEADLINE_S)


def ask(
    server: MetricsServer, path: str, method: str = "GET", **fields: str
) -> tuple[int, str, http.client.HTTPResponse]:
    client = http.client.HTTPConnection(HOST, port_of(server), DEADLINE_S)
    with contextlib.closing(client):
        client.request(method, path, headers=fields)
        response = client.getresponse()
        return response.status, response.read().decode(), response


def is_closed(client: socket.socket) -> bool:
    """Whether the server has closed a connection, without a reply."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_metrics_and_pages_are_served(start: Start) -> None:
    server = start()
    status, text, response = ask(server, "/metrics")
    assert (status, response.getheader("Content-Type")) == (
        200,
        "text/plain; version=0.0.4; charset=utf-8",
    )
    assert 'feeder_images_total{node="0"} 1005.0' in text
    assert response.getheader("Connection") == "close"
    assert ask(server, "/healthz")[:2] == (200, "ok\n")
    assert ask(server, "/readyz")[:2] == (200, "ready\n")
    assert "/metrics" in ask(server, "/")[1]
    assert ask(server, "/metrics?name[]=x")[0] == 200


def test_head_has_the_fields_of_get_without_the_text(start: Start) -> None:
    server = start()
    status, text, response = ask(server, "/metrics", "HEAD")
    assert (status, text) == (200, "")
    assert int(response.getheader("Content-Length") or 0) > 1000


def test_what_is_not_there_or_not_allowed_is_refused(start: Start) -> None:
    server = start()
    assert ask(server, "/secret")[0] == 404
    status, _, response = ask(server, "/metrics", "POST")
    assert (status, response.getheader("Allow")) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"garbage\r\n\r\n", 400),
        (b"GET http://x/metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /" + b"x" * HEAD_BYTES_MAX, 431),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
    ],
    ids=["garbage", "absolute", "http2", "field", "long", "http1.0"],
)
def test_requests_are_parsed_strictly(start: Start, sent: bytes, status: int) -> None:
    with dial(start()) as client:
        client.sendall(sent)
        assert client.recv(4096).startswith(f"HTTP/1.1 {status} ".encode())


def test_a_request_may_come_byte_by_byte(start: Start) -> None:
    with dial(start()) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET /healthz HTTP/1.1\r\n\r\n":
            client.sendall(bytes([byte]))
        assert client.recv(4096).startswith(b"HTTP/1.1 200 ")


@given(st.binary(max_size=300))
def test_any_head_is_parsed_or_refused(head: bytes) -> None:
    request = parse_head(head)
    assert request is None or request[1].startswith("/")


def test_a_head_s_fields_are_found_in_any_case() -> None:
    head = b"GET /metrics?x=1 HTTP/1.1\r\nHost: h\r\nACCEPT:  a, b \r\nauthorization: Bearer t"
    fields = {b"host": b"h", b"accept": b"a, b", b"authorization": b"Bearer t"}
    assert parse_head(head) == ("GET", "/metrics", fields)


def test_silent_clients_and_those_that_never_read_are_closed(start: Start) -> None:
    server = start(deadline_s=0.2)
    with dial(server) as silent, dial(server) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert is_closed(silent)
        assert is_closed(slow)


def long_report() -> HostReport:
    """More than sockets buffer."""
    counters: dict[str, int | float | str] = {f"refused.{'x' * 4000}{n}": n for n in range(4000)}
    report = busy_report(time.monotonic())
    node = report.nodes[0]
    assert node.now is not None
    now = msgspec.structs.replace(node.now, counters=counters)
    return msgspec.structs.replace(report, nodes=(msgspec.structs.replace(node, now=now),))


def test_a_reply_that_is_not_read_is_given_up(start: Start) -> None:
    server = start(long_report(), deadline_s=1.0)
    with dial(server) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        client.recv(1)
        wait_until(lambda: not server.connections, "the connection is given up")
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while data := client.recv(1 << 20):
                received += len(data)
        assert received < 16_000_000


def test_idle_clients_end_no_reply_that_is_being_read(start: Start) -> None:
    server = start(long_report())
    with contextlib.ExitStack() as stack:
        scraper = stack.enter_context(dial(server))
        scraper.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        scraper.recv(1)
        idle = [stack.enter_context(dial(server)) for _ in range(CONNECTIONS_MAX)]
        assert is_closed(idle[0])
        assert list(server.connections.values()).count(True) == 1


def test_idle_clients_keep_no_scraper_out(start: Start) -> None:
    server = start()
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(dial(server)) for _ in range(3 * CONNECTIONS_MAX)]
        assert ask(server, "/metrics")[0] == 200
        wait_until(lambda: len(server.connections) <= CONNECTIONS_MAX, "the oldest are closed")
        assert all(is_closed(client) for client in idle[: 2 * CONNECTIONS_MAX])
        idle[-1].sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert idle[-1].recv(4096).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("ahead", [0, 20, 70])
def test_a_request_that_has_arrived_is_answered_among_a_burst_of_idle_clients(ahead: int) -> None:
    server = MetricsServer(HOST, 0, busy_report)
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        for _ in range(ahead):
            stack.enter_context(dial(server))
        scraper = stack.enter_context(dial(server))
        scraper.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        for _ in range(CONNECTIONS_MAX + 6 - ahead // 2):
            stack.enter_context(dial(server))
        server.start()  # all of them wait in the backlog
        assert scraper.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_a_port_in_use_is_reported(start: Start) -> None:
    server = start()
    with pytest.raises(ResourceError, match=f"cannot listen on {server.address}: Address already"):
        MetricsServer(HOST, port_of(server), busy_report)


# --- token ------------------------------------------------------------------------------------


@pytest.fixture
def token_path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\na comment\n")
    path.chmod(0o600)
    return path


def test_metrics_need_the_token_and_health_does_not(start: Start, token_path: Path) -> None:
    server = start(token=token_path)
    for authorization in ("", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ü"):
        fields = {"Authorization": authorization} if authorization else {}
        status, text, response = ask(server, "/metrics", **fields)
        assert (status, "feeder_" in text) == (401, False)
        assert (response.getheader("WWW-Authenticate") or "").startswith("Bearer")
    assert ask(server, "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
    assert ask(server, "/metrics", authorization=f"bearer  {TOKEN} ")[0] == 200
    assert ask(server, "/healthz")[0] == 200
    assert ask(server, "/readyz")[0] == 200


def test_a_token_that_changes_is_read_again(
    token_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    new = b"Bearer fedcba9876543210fedcba"
    token_path.write_text("fedcba9876543210fedcba\n")
    assert not is_authorized(f"Bearer {TOKEN}".encode(), token_path)
    assert is_authorized(new, token_path)
    token_path.chmod(0o644)
    assert not is_authorized(new, token_path), "others may have read it"
    assert "chmod 600" in caplog.text
    assert not is_authorized(b"Bearer ", token_path)
    token_path.unlink()
    assert not is_authorized(new, token_path)


@pytest.mark.parametrize(
    ("text", "mode", "problem"),
    [
        ("short\n", 0o600, "its first line is not 16 or more ASCII characters"),
        ("\n0123456789abcdef\n", 0o600, "its first line is not"),
        ("0123456789 abcdef\n", 0o600, "its first line is not"),
        (f"{TOKEN}\n", 0o640, "is open to others .mode 0640.: chmod 600"),
    ],
    ids=["short", "empty", "space", "mode"],
)
def test_a_token_that_cannot_be_used_is_refused(
    tmp_path: Path, text: str, mode: int, problem: str
) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    os.chmod(path, mode)
    with pytest.raises(ConfigError, match=problem):
        read_token(path)


NOW_S = 1000.0
START_MAX_S = STATES_MAX_S["restarting"]
SILENT_MAX_S = STATES_MAX_S["hung"]


def health(*states: tuple[str, float]) -> HostReport:
    """Return that of node processes, each in a state since some seconds ago."""
    nodes = [node_in(state, number, NOW_S - age_s) for number, (state, age_s) in enumerate(states)]
    return host_report(*nodes, at_s=NOW_S)


@pytest.mark.parametrize(
    ("state", "age_s", "unhealthy", "not_ready"),
    [
        ("ready", 9000.0, "", ""),
        ("starting", START_DEADLINE_S, "", "node process 0 is starting"),
        ("restarting", START_DEADLINE_S + BACKOFF_MAX_S, "", "node process 0 is restarting"),
        (
            "restarting",
            START_MAX_S + 1,
            "node process 0 has been restarting for 151 s",
            "node process 0 is restarting",
        ),
        ("hung", HEARTBEATS.most_s, "", "node process 0 is hung"),
        ("silent", HEARTBEATS.most_s, "", "node process 0 is silent"),
        ("silent", SILENT_MAX_S + 1, "node process 0 has been silent for 46 s", "…silent"),
        ("hung", SILENT_MAX_S + 1, "node process 0 has been hung for 46 s", "…hung"),
        ("draining", 1.0, "", "draining"),
    ],
)
def test_health_by_a_node_process_s_state(
    state: str, age_s: float, unhealthy: str, not_ready: str
) -> None:
    found = health((state, age_s))
    assert find_trouble(found, NOW_S, must_serve=False) == unhealthy
    assert find_trouble(found, NOW_S, must_serve=True) == not_ready.replace(
        "…", "node process 0 is "
    )


def test_a_node_process_that_is_replaced_makes_no_probe_kill_the_others() -> None:
    """The supervisor ends a silent one after 30 s at most, and gives its successor 120 s."""
    for state, age_s in (("hung", 5.0), ("restarting", 60.0)):
        found = health(("ready", 9000.0), (state, age_s))
        assert find_trouble(found, NOW_S, must_serve=False) == ""
        assert find_trouble(found, NOW_S, must_serve=True) == f"node process 1 is {state}"


def test_the_limits_leave_the_supervisor_its_deadlines_with_a_margin() -> None:
    assert HEARTBEATS.most_s + 10 <= SILENT_MAX_S
    assert START_MAX_S >= START_DEADLINE_S + BACKOFF_MAX_S + 10


def test_a_supervisor_that_stands_still_is_neither_healthy_nor_ready() -> None:
    found, late = health(("ready", 1.0)), "the supervisor has made no report for 6 s"
    for must_serve in (False, True):
        assert find_trouble(found, NOW_S + REPORT_MAX_S + 1, must_serve=must_serve) == late

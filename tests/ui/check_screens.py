"""feeder top and feeder status --watch on a real terminal, with a real daemon and its clients."""

import contextlib
import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.daemon import free_port
from bench.fetcher import BatchFetcher
from feeder.metrics.report import HostReport
from tests.screens.report_node import ReportNode
from tests.support.daemon import Daemon, pack_small, small_recipe, wait_until
from tests.support.host_reports import compute_bound, healthy, many_nodes
from tests.support.key_pairs import KeyPair
from tests.support.sources import feeder_command
from tests.ui.screen import ScreenProgram

UP, DOWN, PAGE_DOWN, END = b"\x1b[A", b"\x1b[B", b"\x1b[6~", b"\x1b[F"
COMMANDS = {
    "top": ("top", "--interval", "0.2"),
    "watch": ("status", "--watch", "--interval", "0.2"),
}
LIVE = pytest.mark.parametrize("command", COMMANDS)


def start(command: str, endpoint: str) -> ScreenProgram:
    name, *rest = COMMANDS[command]
    return ScreenProgram(feeder_command(name, endpoint, "--timeout", "2", *rest))


@contextlib.contextmanager
def showing(
    command: str, report: HostReport, *texts: str
) -> Iterator[tuple[ReportNode, ScreenProgram]]:
    with ReportNode(report) as node, start(command, node.endpoint) as program:
        program.wait_text(*texts, "q quit")
        yield node, program


def leave(program: ScreenProgram) -> None:
    program.type(b"q")
    assert program.end() == 0
    program.check_restored()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_small(tmp_path_factory.mktemp("screens"))


def serving(packed: Path, port: int) -> Daemon:
    bind = f"tcp://127.0.0.1:{port}"
    return Daemon("--data", f"d={packed}", "--workers", "2", "--bind", bind)


def fetch_batches(endpoint: str, count: int) -> None:
    with BatchFetcher(endpoint, dataset="d", recipe=small_recipe()) as fetcher:
        for _ in fetcher.fetch(0, count):
            pass


def test_top_shows_a_real_daemon_through_its_restart(packed: Path) -> None:
    port = free_port()
    endpoint = f"tcp://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(serving(packed, port))
        top = stack.enter_context(start("top", endpoint))
        top.wait_text("2 workers", "images/s", "q quit")
        with BatchFetcher(endpoint, dataset="d", recipe=small_recipe()) as fetcher:
            batches = fetcher.fetch(0, 50_000)

            def shows_client() -> bool:
                next(batches)
                return bool(re.search(r"^client +images/s", top.text(), re.MULTILINE))

            wait_until(shows_client, "the client on the screen")
            wait_until(lambda: next(batches) and "stages" in top.text(), "stages on the screen")
        daemon.close()
        top.wait_text(f"no answer from {endpoint} for")
        stack.enter_context(serving(packed, port))
        top.wait_without("no answer")
        top.wait_text("2 workers")
        leave(top)


@LIVE
def test_a_daemon_with_keys_is_watched_over_tcp(command: str, packed: Path, tmp_path: Path) -> None:
    server, client = (KeyPair.make(tmp_path, name) for name in ("server", "client"))
    allowed = tmp_path / "allowed"
    allowed.write_text(client.public.read_text())
    name, *rest = COMMANDS[command]
    with Daemon(
        *("--data", f"d={packed}", "--workers", "1", "--bind", "tcp://127.0.0.1:0"),
        *("--secret-key", server.secret, "--client-keys", allowed),
    ) as daemon:
        keys = ("--server-key", str(server.public), "--client-key", str(client.secret))
        with ScreenProgram(feeder_command(name, daemon.endpoint, *rest, *keys)) as program:
            program.wait_text("1 worker", "q quit")
            leave(program)


def test_status_of_a_real_daemon_is_coloured_on_a_terminal_only(packed: Path) -> None:
    with serving(packed, free_port()) as daemon:
        fetch_batches(daemon.endpoint, 3)
        with ScreenProgram(feeder_command("status", daemon.endpoint)) as status:
            assert status.end() == 0
            assert "Serves     d  53 images" in status.text()
            assert b"\x1b[" in status.written
        with ScreenProgram(
            feeder_command("status", daemon.endpoint), environ={"NO_COLOR": "1"}
        ) as status:
            assert status.end() == 0
            assert not re.search(rb"\x1b\[[0-9;]*3[0-9]", status.written)


ENDS = {
    "q": (b"q", 0),
    "ctrl-c": (b"\x03", 0),
    "ctrl-backslash": (b"\x1c", 131),
    "sigterm": (signal.SIGTERM, 143),
    "sighup": (signal.SIGHUP, 129),
    "sigquit": (signal.SIGQUIT, 131),
}
"""What ends a live screen: keys or a signal, and its exit status then."""


@LIVE
@pytest.mark.parametrize("end", ENDS)
def test_the_terminal_is_restored(command: str, end: str) -> None:
    cause, status = ENDS[end]
    text = "compute-bound: decode takes 68 %"
    with showing(command, compute_bound(), text) as (_, program):
        assert program.is_live()
        if isinstance(cause, bytes):
            program.type(cause)
        else:
            program.process.send_signal(cause)
        assert program.end() == status
        program.check_restored()
        assert b"Traceback" not in program.written


@LIVE
def test_the_terminal_is_restored_after_a_crash(command: str) -> None:
    """A report that cannot be drawn, as a bug would have it."""
    broken = (
        "from feeder.diagnosis.interval import HostInterval\n"
        "from feeder.__main__ import start\n"
        "import sys\n"
        "calls = []\n"
        "init = HostInterval.__init__\n"
        "def fail(self, report):\n"
        "    calls.append(1)\n"
        "    if len(calls) > 3: raise RuntimeError('made to crash')\n"
        "    init(self, report)\n"
        "HostInterval.__init__ = fail\n"
        "sys.exit(start())\n"
    )
    with ReportNode(compute_bound()) as node:
        _, _, _, *arguments = feeder_command(*COMMANDS[command], node.endpoint)
        python = feeder_command()[0]
        with ScreenProgram([python, "-c", broken, *arguments]) as program:
            assert program.end() == 1
            program.check_restored()
            assert b"made to crash" in program.written


@LIVE
def test_ctrl_z_gives_the_terminal_back_until_the_program_goes_on(command: str) -> None:
    with showing(command, compute_bound()) as (_, program):
        os.kill(program.process.pid, signal.SIGTSTP)
        wait_until(program.has_stopped, "it was suspended")
        program.check_restored()
        program.resume()
        wait_until(program.is_live, "it has the terminal again")
        leave(program)


@LIVE
def test_it_follows_the_terminals_size(command: str) -> None:
    with showing(command, many_nodes()) as (_, program):
        program.resize(160, 50)
        program.wait_text("gpu-1 pid 90007 rank 7")
        program.resize(40, 12)
        wait_until(
            lambda: "healthy: 28,800 images/s, clients wait" in program.text().splitlines(),
            "the verdict, wrapped for the small screen",
        )
        leave(program)


def test_keys_scroll_and_pause() -> None:
    with showing("top", many_nodes(), "0/0  cpu 0", "126 more") as (node, top):
        top.type(DOWN * 3)
        top.wait_text("0/3  cpu 3", "▲ 3 more")
        top.type(UP)
        top.wait_text("▲ 2 more")
        top.type(PAGE_DOWN)
        top.wait_text("▲ 12 more")
        top.type(END)
        top.wait_text("7/31 cpu 255")
        top.type(b"p")
        top.wait_text("PAUSED")
        asked = len(node.received)
        node.show([healthy()])
        top.type(b"\x1b[H")
        top.wait_text("0/0  cpu 0", "PAUSED")
        assert len(node.received) <= asked + 1, "one may have been under way"
        top.type(b"p")
        top.wait_text("healthy: 8 workers")
        assert len(node.peers) == 1, "one connection for all requests"


def test_status_leaves_the_last_report_on_the_terminal() -> None:
    with showing("watch", compute_bound()) as (_, program):
        leave(program)
        after = bytes(program.written).rpartition(b"\x1b[?1049l")[2]
        assert b"compute-bound: decode takes 68 %" in after


@LIVE
def test_a_terminal_that_is_closed_ends_it(command: str, tmp_path: Path) -> None:
    """The kernel sends SIGHUP, and nothing can be written any more."""
    name, *rest = COMMANDS[command]
    messages = tmp_path / "messages"
    with ReportNode(compute_bound()) as node:
        line = shlex.join(feeder_command(name, node.endpoint, *rest))
        # Its own standard error, which outlives the terminal.
        shell = ("bash", "-c", f"exec {line} 2> {messages}")
        with ScreenProgram(shell) as program:
            program.wait_text("q quit")
            program.hang_up()
            assert program.process.wait(60) in (0, 129)
    assert messages.read_text() == ""


def test_a_dumb_terminal_is_one_line() -> None:
    with (
        ReportNode(compute_bound()) as node,
        ScreenProgram(feeder_command("top", node.endpoint), environ={"TERM": "dumb"}) as top,
    ):
        assert top.end() == 2
        assert "feeder top needs a terminal that can move its cursor" in top.text()


def test_a_terminal_without_block_characters_gets_ascii() -> None:
    with (
        ReportNode(compute_bound()) as node,
        ScreenProgram(
            feeder_command("top", node.endpoint),
            environ={"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        ) as top,
    ):
        top.wait_text("stages     ####", "q quit")
        assert top.text().isascii()
        leave(top)

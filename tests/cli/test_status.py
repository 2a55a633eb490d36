"""feeder status and feeder top without a terminal: what they print, and their errors."""

import json
import re
import subprocess
import sys
import time

import msgspec
import pytest

from feeder.cli import main as command
from feeder.cli.reports import LinkSource
from feeder.errors import ConfigError, PeerError
from feeder.metrics.report import HostReport
from tests.screens.report_node import ReportNode
from tests.support.host_reports import compute_bound, healthy, silent_worker


class StopWatchingError(Exception):
    """Ends a test's --watch."""


def run(*arguments: str) -> int:
    return command.run(arguments)


def test_status_prints_a_summary_of_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    with ReportNode(compute_bound()) as node:
        assert run("status", node.endpoint) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("compute-bound: decode takes 68 %")
    assert "Delivers   3,000 images/s" in shown
    assert "\x1b" not in shown, "no colours in a pipe"
    assert max(map(len, shown.splitlines())) <= 80


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    with ReportNode(silent_worker()) as node:
        assert run("status", node.endpoint, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["verdict"]["kind"] == "silent-worker"
    assert shown["report"]["nodes"][0]["now"]["workers"][1]["silent_s"] == 6.9


def test_counters_are_those_of_the_node_process(capsys: pytest.CaptureFixture[str]) -> None:
    with ReportNode(healthy()) as node:
        assert run("status", node.endpoint, "--counters") == 0
        assert capsys.readouterr().out == "batches  12\n"
        assert run("status", node.endpoint, "--counters", "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"batches": 12}


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_watch_in_a_pipe_prints_one_report_after_another_over_one_connection(
    form: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the supervisor is silent."""
    waits: list[float] = []

    def wait(_self: object, wait_s: float, *_: object) -> None:
        waits.append(wait_s)
        if len(waits) == 5:
            raise StopWatchingError

    monkeypatch.setattr(LinkSource, "wait", wait)
    with (
        ReportNode(healthy(), compute_bound(), None, silent_worker()) as node,
        pytest.raises(StopWatchingError),
    ):
        run("status", "--interval", "3", "--watch", node.endpoint, *form)
    shown = capsys.readouterr().out
    rest_s = waits.pop(2)
    assert rest_s <= 3.0, "what is left of the interval after a failure"
    assert waits == [3.0] * 4
    assert len(node.peers) == 1
    kinds = ["healthy", "compute-bound", "silent-worker"]
    if form:
        lines = [json.loads(line) for line in shown.splitlines()]
        assert [line["verdict"]["kind"] for line in lines if "verdict" in line] == kinds
        assert ["error" in line for line in lines] == [False, False, True, False]
    else:
        assert [shown.count(f"{kind}: ") for kind in kinds] == [1, 1, 1]
    assert shown.count("the supervisor of its daemon has not answered") == 1


def test_a_silent_supervisor_is_one_line_with_the_remedy() -> None:
    with (
        ReportNode(None) as node,
        pytest.raises(PeerError, match=r"has not answered: try another endpoint of this host"),
    ):
        run("status", node.endpoint)


@pytest.mark.parametrize("name", ["status", "top"])
def test_an_endpoint_without_a_daemon_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.screens.console.is_live", lambda _console: True)
    with pytest.raises(PeerError, match=r"no answer from tcp://127.0.0.1:1 within 0.2 s: is a"):
        run(name, "tcp://127.0.0.1:1", "--timeout", "0.2")


def test_top_needs_a_terminal() -> None:
    with ReportNode(healthy()) as node, pytest.raises(ConfigError, match="needs a terminal"):
        run("top", node.endpoint)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("status", "--watch", "x", "--interval", "0"),
            "--interval 0: it must be from 0.1 to 3600",
        ),
        (("status", "x", "--interval", "1"), "--interval goes with --watch"),
        (("status", "x", "--counters", "--watch"), "leave out --counters"),
        (("status", "x"), "'x' is no endpoint"),
        (("status", "x", "y", "--watch"), "--watch shows one daemon: name one ENDPOINT"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(*arguments)
    assert message in str(caught.value)


def test_without_rich_programs_still_get_their_output() -> None:
    """A training environment has no rich, and must not need the daemon's libraries for it."""
    code = "import sys; sys.modules['rich'] = None; from feeder.__main__ import start; start()"
    with ReportNode(healthy()) as node:
        json_form, counters, text = (
            subprocess.run(
                [sys.executable, "-c", code, "status", node.endpoint, *form],
                capture_output=True,
                text=True,
            )
            for form in (["--json"], ["--counters"], [])
        )
    assert json.loads(json_form.stdout)["verdict"]["kind"] == "healthy"
    assert counters.stdout == "batches  12\n"
    assert re.search("rich.*pip install rich.*--json or --counters", text.stderr)


def named(report: HostReport, name: str, host: str, incarnation: int) -> HostReport:
    return msgspec.structs.replace(report, name=name, host=host, incarnation=incarnation)


def test_feeders_that_share_a_name_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        ReportNode(named(healthy(), "pod-1", "h1", 1)) as one,
        ReportNode(named(healthy(), "pod-1", "h2", 2)) as two,
        ReportNode(named(healthy(), "pod-2", "h3", 3)) as three,
        ReportNode(named(healthy(), "pod-2", "h3", 3)) as same,  # another endpoint of that daemon
    ):
        endpoints = (one.endpoint, two.endpoint, three.endpoint, same.endpoint)
        assert run("status", "--json", *endpoints) == 0
        shown = json.loads(capsys.readouterr().out)
        assert run("status", *endpoints) == 0
    feeders = [f"h1 at {one.endpoint}", f"h2 at {two.endpoint}"]
    line = (
        f"2 feeders are named pod-1: {feeders[0]}, {feeders[1]}; give each its own name "
        "(serve.name), or end the ones that were replaced"
    )
    assert shown["shared_names"] == [{"name": "pod-1", "feeders": feeders, "line": line}]
    assert [host["report"]["name"] for host in shown["hosts"]] == [*["pod-1"] * 2, *["pod-2"] * 2]
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(line), "lines are wrapped to the terminal's width"


def test_hosts_get_a_line_each_and_an_absent_one_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ReportNode(named(healthy(), "", "h1", 1)) as node:
        arguments = ("status", "tcp://127.0.0.1:1", node.endpoint, "x", "--timeout", "1")
        assert run(*arguments) == PeerError.exit_status
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert run(*arguments, "--json") == PeerError.exit_status
    assert [line[-1] for line in lines[:4]] == ["state", "report", "healthy", "report"]
    assert lines[2][:2] == [node.endpoint, "h1"]
    shown = " ".join(word for line in lines for word in line)
    assert "no answer from tcp://127.0.0.1:1 within 1 s" in shown
    assert "'x' is no endpoint" in shown
    assert shown.count("no report") == 2
    hosts = json.loads(capsys.readouterr().out)["hosts"]
    assert ["error" in host for host in hosts] == [True, False, True]


DEAD = [f"tcp://127.0.0.{host}:{port}" for host in (1, 2, 3) for port in range(1, 100)]


def test_all_hosts_are_asked_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    began_s = time.monotonic()
    with ReportNode(healthy()) as node:
        assert run("status", *DEAD, node.endpoint, "--timeout", "1") == PeerError.exit_status
    assert time.monotonic() - began_s < 30, "one after another they take 297 s"
    shown = capsys.readouterr().out
    assert f"{node.endpoint}  " in shown
    assert shown.count("no report") == len(DEAD)
    text = (
        f"no answer from {', '.join(DEAD[:3])} and 294 more within 1 s: is a feeder serving there?"
    )
    assert text in " ".join(shown.split())
    with pytest.raises(PeerError) as caught:  # and if none answers
        run("status", *DEAD, "--timeout", "1")
    assert str(caught.value) == text

"""What feeder status prints of each made-up report."""

import re

import pytest
from msgspec.structs import replace
from rich.text import Text

from feeder.metrics.report import HostReport, ServedDatasetReport
from feeder.screens.sheet import ASCII, BLOCKS, CUT_BELOW, Glyphs, Sheet
from feeder.screens.status_screen import CLIENTS_SHOWN, draw_status
from feeder.screens.top_screen import draw_top
from tests.support.host_reports import (
    CLOCK_S,
    REPORTS,
    host_report,
    many_clients,
    many_nodes,
    no_clients,
    restarting_node,
    silent_worker,
    store,
    store_bound,
    trainer,
)

EVERY_REPORT = pytest.mark.parametrize("name", REPORTS)


def draw(report: HostReport, width: int = 80, glyphs: Glyphs = BLOCKS) -> str:
    """What is printed; every line must fit."""
    lines = draw_status(report, Sheet(width, glyphs))
    assert all(line.cell_len <= width for line in lines)
    return "\n".join(line.plain for line in lines)


def words(text: str) -> str:
    return " ".join(text.split())


@EVERY_REPORT
@pytest.mark.parametrize("width", [20, 40, 80, 160])
def test_every_report_fits_every_width(name: str, width: int) -> None:
    report = REPORTS[name]()
    assert not re.search(r"\b(nan|inf|None)\b", draw(report, width))
    assert draw(report, width, ASCII).isascii()


@EVERY_REPORT
@pytest.mark.parametrize(
    "step",
    [4, pytest.param(1, marks=pytest.mark.extensive("every width; make test has every fourth"))],
)
def test_from_40_columns_on_no_line_is_cut(
    name: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(sheet: Sheet, line: Text) -> Text:
        assert line.cell_len <= sheet.width, f"{line.plain!r} on {sheet.width} columns"
        return line

    monkeypatch.setattr(Sheet, "fit", fit)
    report = REPORTS[name]()
    for width in (*range(CUT_BELOW, 100, step), 160):
        sheet = Sheet(width, BLOCKS)
        draw_status(report, sheet)
        draw_top(report, sheet, 50, 0, Text("q quit"))


@EVERY_REPORT
def test_the_verdict_comes_first(name: str) -> None:
    report = REPORTS[name]()
    first = draw(report).split("\n\n")[0]
    assert words(first) == report.verdict.text


def test_a_silent_worker_is_named_with_its_process_and_state() -> None:
    screen = words(draw(silent_worker()))
    assert "silent: worker 1 (pid 5001) of node process 0 for 6.9 s stopped by a signal" in screen


def test_restarts_are_shown_only_where_there_were_some() -> None:
    assert "restart" not in draw(many_nodes())
    screen = draw(restarting_node())
    assert "Incidents  node restarts 3  worker restarts 1" in screen
    assert re.search(r"^ +1 +restarting +3$", screen, re.MULTILINE)


def test_warnings_of_the_start_are_shown() -> None:
    assert "- placement: NUMA node 1 has no memory" in draw(restarting_node())


def test_without_clients_there_are_no_rates_and_no_waits() -> None:
    screen = draw(no_clients())
    assert not re.search(r"Delivers|Waits|Stages|client +images", screen)


def test_a_client_of_several_node_processes_is_one_row() -> None:
    rows = [line for line in draw(many_nodes()).splitlines() if line.startswith("gpu-")]
    assert len(rows) == 8
    assert all(re.search(r"rank \d +8 +3,600 +0\.8 %", row) for row in rows)


def test_clients_are_named_with_their_jobs() -> None:
    """By job and rank, also where names are long: those of jobs differ at either end."""
    jobs = [f"{'imagenet-' * 6}lr-0.1-{number:02}" for number in range(2)]
    names = [f"gpu-{number} pid 4711 rank {number}" for number in range(2)]
    pairs = zip(names, jobs, strict=True)
    screen = draw(host_report(clients=[trainer(n, job=j) for n, j in pairs]))
    for name, job in zip(names, jobs, strict=True):
        assert re.search(rf"^{name}  imagen.*{job[-4:]} +1,000 +6 of 8 ", screen, re.MULTILINE)
    assert " job " not in draw(host_report(clients=[trainer("c")]))


def test_what_a_clients_batches_are_drawn_from_is_shown() -> None:
    orders = {"lanes": 64, "working_set_bytes": 16 << 30}, {"lanes": 1, "working_set_bytes": 10**9}
    clients = [trainer(f"c{number}", **order) for number, order in enumerate(orders)]
    screen = draw(host_report(clients=clients))
    assert "  64 lanes, 17.2 GB  " in screen
    assert "  1 lane, 1.0 GB  " in screen


def test_a_long_list_of_clients_is_summed_up() -> None:
    screen = draw(many_clients())
    assert screen.count("notebook-") == CLIENTS_SHOWN
    assert "49 more get 2,211 images/s" in screen


@pytest.mark.parametrize(
    ("wait", "line"),
    [
        (None, "the client has not reported any"),
        (0.0, "the client did not wait for batches"),
        (0.25, "client 25 % "),
    ],
)
def test_the_clients_side_of_waiting(wait: float | None, line: str) -> None:
    assert line in words(draw(host_report(clients=[trainer("c", wait_share=wait)])))


def test_the_workers_side_of_waiting_is_what_they_are_not_busy() -> None:
    assert "workers 40 % " in words(draw(host_report(busy=0.6)))
    assert "wait for requests" not in draw(host_report(busy=1.0))


def test_transport_says_how_batches_reach_clients() -> None:
    def delivers(*lent: bool) -> str:
        clients = [trainer(f"c{number}", is_lent=each) for number, each in enumerate(lent)]
        return draw(host_report(clients=clients))

    assert "batches in place" in delivers(True, True)
    assert "batches copied" in delivers(False)
    assert "batches 50 % in place" in delivers(True, False)


def test_quota_and_throttling_are_shown_where_there_is_one() -> None:
    screen = draw(host_report(load={"usable_cpus": 2.5, "throttled_s": 22.0}))
    assert "quota 2.5 CPUs" in screen
    assert "throttled 30 %" in screen
    assert "quota" not in draw(host_report())


def test_counters_of_trouble_and_losses_of_datasets_are_shown() -> None:
    counters: dict[str, int | float | str] = {
        "frames_dropped.malformed": 12,
        "bad_samples": 0,
        "batches_failed.bad-sample": 3,
        "sessions_opened": 9,
        "dataset.train.loss": "5 of 9 resized",
    }
    screen = draw(host_report(counters=counters))
    assert "Incidents  frames dropped malformed 12  batches failed bad-sample 3" in screen
    assert "Packed     train  5 of 9 resized" in screen
    assert "sessions" not in screen
    assert "bad samples" not in screen


def test_the_supervisor_s_lines_count_with_those_of_its_node_processes() -> None:
    report = host_report(nodes=2, counters={"log_lines_limited": 10})
    screen = draw(replace(report, log_lines_limited=3, log_lines_dropped=4))
    assert "log lines limited 23" in words(screen)
    assert "log lines dropped 4" in words(screen)


def test_what_comes_from_a_store_is_shown_where_a_dataset_is_in_one() -> None:
    screen = words(draw(store_bound()))
    assert "Store 380 MB/s 95 requests/s 5.4 batches wait repeated: throttled 9, reset 1" in screen
    assert "disk cache: 39.9 GB of 40.0 GB batches 30 % warm, 70 % cold" in screen
    assert "evicts 120 MB/s all samples take 140 GB" in screen
    assert "Incidents store failures denied 3" in screen
    assert "Store " not in draw(host_report())
    quiet = replace(host_report(), **store(clock_s=CLOCK_S + 5.0))
    assert "Store the fetcher has sent nothing for 5.0 s" in words(draw(quiet))


@pytest.mark.parametrize(
    ("left_s", "retries", "text"),
    [
        (-1.0, {"credentials": 1}, ""),
        (3000.0, {"credentials": 1}, "credentials expire in 50 min"),
        (240.0, {}, "credentials expire in 4 min"),
        (240.0, {"credentials": 1}, "credentials expire in 4 min and could not be renewed"),
        (0.0, {"credentials": 9}, "credentials expired and could not be renewed"),
    ],
)
def test_when_credentials_expire_is_said_in_words(
    left_s: float, retries: dict[str, int], text: str
) -> None:
    screen = words(draw(replace(host_report(), **store(expires_in_s=left_s, retries=retries))))
    expiry = screen.partition("95 requests/s ")[2].partition("disk cache")[0]
    assert expiry.strip() == text


def test_fallbacks_are_shown_apart_from_incidents() -> None:
    counters: dict[str, int | float | str] = {
        "fallbacks.turbojpeg": 1312,
        "fallbacks.copied-tcp": 7,
        "fallbacks.copied-refused": 0,
    }
    screen = draw(host_report(nodes=2, counters=counters))
    assert "Fallbacks  2,624 images decoded by TurboJPEG\n" in screen
    assert "14 batches copied over tcp: ipc reads in place" in words(screen)
    assert "Incidents" not in screen
    assert "refused" not in screen


def test_control_characters_of_names_reach_no_terminal() -> None:
    """The wire refuses most of them; a name can still reorder or hide a line."""
    evil = "a\u202eb\x1b[31mc\u2028d\u200f"
    report = replace(
        host_report(clients=[trainer(evil), trainer("other")]),
        host=evil,
        datasets=(
            ServedDatasetReport(
                name=evil, samples=1, classes=1, content="f", fingerprint="f", folder=evil
            ),
        ),
        warnings=(evil,),
    )
    screen = draw(report)
    assert "a?b?[31mc?d?" in screen
    assert not re.search(r"[\x1b\u202e\u2028\u200f]", screen)

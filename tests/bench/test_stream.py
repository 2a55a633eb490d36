"""``feeder-bench stream`` on a tiny set: rows, JSON, and nothing left behind."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from bench.client_process import ClientProcess, await_open
from bench.daemon import DATASET_NAME, running_daemon
from bench.machine import choose_core
from bench.report import RATE, Result, summarise
from bench.stream.run import client_counts, row_beside
from bench.stream.stream_report import StreamReport, conclude, describe_measured, ways_of
from bench.stream.streams import Delivered, stream_rows
from feeder.cli.contact_sheet import Note
from feeder.cli.main import main as feeder_main
from feeder.errors import ConfigError, PeerError, ResourceError
from tests.bench.rows import Expected, alone, check_rows, group, run_bench
from tests.support.daemon import runs
from tests.support.synthetic_sets import pack_synthetic

SAMPLES = 41
WAYS = ("ipc", "ipc-copy", "tcp", "ipc-2-clients", "tcp-2-clients")
SECURITY = {
    "stream/tcp-curve": "stream/tcp",
    "stream/tcp-beside-garbage": "stream/tcp",
    "stream/ipc-beside-garbage": "stream/ipc",
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_synthetic(tmp_path_factory.mktemp("stream"), images=SAMPLES)


@pytest.fixture
def short_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="fb-", dir="/tmp") as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture(
    params=[1, pytest.param(2, marks=pytest.mark.extensive("a second core: the same rows"))]
)
def cores(request: pytest.FixtureRequest) -> Iterator[int]:
    """How many cores the bench may use at most."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(usable)[: request.param])
    yield request.param
    os.sched_setaffinity(0, usable)


def expected_rows(workers: int) -> Expected:
    """Return units and baselines of the rows over one daemon, with the names for one worker."""
    rows = group(RATE, "sample/whole", *(f"stream/{way}" for way in WAYS))
    rows |= group("µs", *(f"handover/{name}" for name in ("memcpy", "client", "client-whole")))
    rows |= {f"stream/{way}-bytes": ("GB/s", None) for way in WAYS}
    for side, way in itertools.product(("daemon", "client"), WAYS):
        rows[f"stream/{way}-{side}-cpu"] = ("µs/image", None)
    for percent, way in itertools.product((50, 99), ("ipc", "ipc-copy", "tcp")):
        rows[f"stream/{way}-gap-p{percent}"] = ("ms", None)  # two clients have a batch each
    rows |= alone(
        handover__socket_bytes="bytes a batch",
        handover__socket_bytes_copy="bytes a batch",
        handover__loader_cpu="µs",
        stream__first_batch="s",
        check__equal_to_local="samples",
        worker__own_memory="MiB",
        daemon__idle="% of a core",
    )
    suffix = f"-{workers}-workers"

    def named(name: str | None) -> str | None:
        is_local = name == "sample/whole"
        return name and name + ("-beside" if is_local else "") + suffix

    if workers == 1:
        return rows
    return {named(name) or "": (unit, named(base)) for name, (unit, base) in rows.items()}


def test_names_and_baselines_of_rows(
    cores: int,
    dataset: Path,
    tmp_path: Path,
    short_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--rounds", 1, "--batches", 2, "--idle", 0.2, "--clients", 2)
    document = run_bench(tmp_path, "stream", dataset, *options)
    assert list(short_folder.iterdir()) == []
    used = len(set(document["machine"]["cores_used"].values()))
    assert used <= cores
    assert document["measured"] == {"rounds": 1, "batches": 2, "batch size": SAMPLES, "clients": 2}
    # Of the rows of security, the baselines are not among the rows.
    others = [row for row in document["results"] if row["name"].startswith(("crypto", *SECURITY))]
    document["results"] = [row for row in document["results"] if row not in others]
    assert {row["name"]: row["baseline"] for row in others[:-1]} == SECURITY
    assert others[-1]["unit"] == "GB/s"
    expected = expected_rows(1) | (expected_rows(2) if used > 1 else {})
    expected |= {"memcpy": ("GB/s", None), "zmq/ipc": ("GB/s", "memcpy")}
    expected |= {"zmq/tcp": ("GB/s", "memcpy")}
    for transport, name in itertools.product(("ipc", "tcp"), ("zmq/{}-copied", "transport/{}")):
        expected[name.format(transport)] = ("GB/s", f"zmq/{transport}")
    rows = check_rows(document, expected)
    for suffix in ["", *(["-2-workers"] if used > 1 else [])]:
        for way in WAYS:
            images = rows[f"stream/{way}{suffix}"]["value"]
            gigabytes = rows[f"stream/{way}-bytes{suffix}"]["value"]
            assert gigabytes == pytest.approx(images * 224 * 224 * 3 / 1e9)
        handed, whole = (rows[f"handover/client{each}{suffix}"] for each in ("", "-whole"))
        assert handed["value"] < whole["value"]
        assert rows[f"handover/socket-bytes{suffix}"]["value"] < 200
        assert rows[f"handover/socket-bytes-copy{suffix}"]["value"] > SAMPLES * 224 * 224 * 3
        assert rows[f"check/equal-to-local{suffix}"]["value"] == SAMPLES
        assert 10 < rows[f"worker/own-memory{suffix}"]["value"] < 1000
    printed = capsys.readouterr().out
    assert printed.startswith("One worker delivers ")
    assert "stream/tcp" in printed


def test_numbers_of_clients_double_up_to_the_most() -> None:
    assert [client_counts(most) for most in (2, 3, 4, 7, 8)] == [
        [2],
        [2, 3],
        [2, 4],
        [2, 4, 7],
        [2, 4, 8],
    ]


@pytest.mark.parametrize(
    ("endpoint", "is_killed", "reason"),
    [
        ("nowhere", False, "gave up: endpoint 'nowhere' cannot be dialled"),
        ("ipc:///nowhere", True, "ended with status -9"),
    ],
)
def test_a_client_that_gives_up_or_dies_is_quoted(
    endpoint: str, is_killed: bool, reason: str
) -> None:
    with ClientProcess(endpoint, batch_size=1, core=choose_core(None)) as client:
        if is_killed:
            os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(PeerError, match=reason):
            await_open([client])


def _report(rounds: int, *, clients: int = 2, workers: int = 2) -> StreamReport:
    """A report with the rates 900 of 1,000 over ipc, 800 over tcp, in each round 10 % apart."""
    noise = [1.0, 1.1, 0.9, 1.05, 0.95][:rounds]
    rows: list[Result] = []
    for count in range(1, workers + 1):
        delivered: dict[str, list[Delivered]] = {}
        for way, level in (("ipc", 900.0), ("ipc-copy", 700.0), ("tcp", 800.0)):
            for more in ["", f"-{clients}-clients"][: clients if way != "ipc-copy" else 1]:
                delivered[way + more] = [
                    Delivered(
                        images=1000,
                        taken_s=1000 / (count * level * factor),
                        daemon_cpu_s=0.9,
                        client_cpu_s=0.05,
                        gaps_s=[] if more else [0.1, 0.2],
                    )
                    for factor in noise
                ]
        of_one = stream_rows([1000.0 * factor for factor in noise], delivered, 150_528)
        rows += [row_beside(count, row) for row in of_one]
    rows.append(summarise("stream/tcp-curve", RATE, [500.0]))
    for name in ("memcpy", "zmq/tcp", "transport/tcp"):
        rows.append(summarise(name, "GB/s", [2.0, 1.0, 3.0][:rounds]))
    return StreamReport(
        bench="stream",
        machine={"cpu": "Test CPU", "cores": 2},
        measured={"rounds": rounds, "batches": 5, "batch size": 64, "clients": clients},
        results=rows,
    )


def test_the_conclusion_is_in_words_and_first() -> None:
    report = _report(3)
    first, workers, clients, transport = conclude(report)
    assert first == (
        "One worker delivers 900 images/s to a client on its host (ipc, read in place), 0.90 of "
        "what its core makes without a daemon, and 800 over tcp, 0.80 of it."
    )
    assert workers.endswith("deliver 1,800, 1.80 times what one core makes without a daemon.")
    assert clients.startswith("2 clients together get 1.00 times (ipc) and 1.00 times (tcp)")
    assert transport.startswith("Transport is not the limit: without decoding, tcp carries 2 GB/s")
    lines = report.to_text().splitlines()
    assert " ".join(lines).startswith(first)
    in_words = lines[: next(at for at, line in enumerate(lines) if line.startswith("All rows"))]
    assert all(len(line) <= 79 for line in in_words)
    assert "sample/whole" not in " ".join(in_words)
    words = [" ".join(line.split()) for line in in_words]
    assert "one process, without a daemon 1,000 1" in words
    assert "1 client, ipc, in place 900 0.90 200 900 50" in words
    assert "2 clients, tcp 800 0.80 900 50" in words


def test_from_five_rounds_on_the_noise_is_said() -> None:
    assert len(conclude(_report(3, clients=1, workers=1))) == 2, "one client and transport"
    report = _report(5)
    first, workers, clients, _ = conclude(report)
    assert "place), 0.90 (0.90–0.90) of what its core makes without a daemon, and 800" in first
    assert "deliver 1,800, 1.80 (1.80–1.80) times" in workers
    assert (
        "get 1.00 times (ipc, within the noise) and 1.00 times (tcp, within the noise)" in clients
    )
    slow = {
        row.name: row
        if row.name != "stream/tcp-2-clients"
        else replace(row, value=400.0, ratio=0.4, ratio_low=0.38, ratio_high=0.42)
        for row in report.results
    }
    clients = conclude(replace(report, results=[*slow.values()]))[2]
    assert "1.00 times (ipc, within the noise) and 0.50 times (tcp) what one client" in clients
    assert describe_measured(report).endswith("In brackets: the 90 % interval of the true median.")


def test_a_single_round_is_said_to_have_no_spread() -> None:
    assert "no spread is known" in describe_measured(_report(1))
    assert describe_measured(_report(3)) == (
        "Values are medians of 3 rounds with 5 batches of 64 images; ratios are of the same "
        "rounds. Noise is shown from 5 rounds on."
    )


def test_the_ways_are_those_of_samples_only() -> None:
    ways = ways_of(_report(3))
    assert [(way.words, way.workers) for way in ways[:5]] == [
        ("1 client, ipc, in place", 1),
        ("1 client, ipc, copied", 1),
        ("1 client, tcp", 1),
        ("2 clients, ipc, in place", 1),
        ("2 clients, tcp", 1),
    ]
    assert {way.workers for way in ways[5:]} == {2}
    assert ways[0].gap_p99 is not None
    assert ways[3].gap_p99 is None, "two clients share two batches: there is no gap"


@pytest.mark.parametrize("rounds", [1, 3])
def test_only_several_rounds_are_drawn_with_their_spread(rounds: int) -> None:
    pytest.importorskip("altair", reason="the plots extra is not installed")
    from bench.plots.stream import conclude_stream, draw_stream

    drawn = json.dumps(draw_stream(_report(rounds)).to_dict())
    assert ("least and most" in drawn) == (rounds > 1)
    assert ('"rule", "color": "#2b2f36"}' in drawn) == (rounds > 1)
    for title in ("End to end with 1 worker", "End to end with 2 workers", "Cost with 1 worker"):
        assert title in drawn
    assert "Transport alone" in drawn
    assert "without a daemon" in drawn
    assert "sample/whole" not in drawn
    headline, lines = conclude_stream(_report(rounds))
    assert headline == [
        "One worker delivers 900 images/s end to end,",
        "0.90 of what its core makes without a daemon; over tcp 0.80",
    ]
    assert "0.90 (0.90–0.90) of what" in conclude_stream(_report(5))[0][1]
    assert any("no spread" in line for line in lines) == (rounds == 1)


def test_a_report_that_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("altair", reason="the plots extra is not installed")
    from bench.plots.draw import write_plot

    report = _report(3)
    with pytest.raises(ConfigError, match="no picture of `feeder-bench pack`"):
        write_plot(replace(report, bench="pack"), tmp_path / "pack.png")
    with pytest.raises(ResourceError, match="cannot write the picture"):
        write_plot(report, tmp_path / "none" / "x.png")


def test_preview_draws_a_batch_that_a_daemon_serves(
    dataset: Path,
    tmp_path: Path,
    short_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sheets: list[tuple[np.ndarray, list[str], list[Note]]] = []

    def keep(
        images: np.ndarray, captions: list[str], path: Path, *, notes: list[Note], **head: object
    ) -> None:
        sheets.append((images, captions, notes))

    monkeypatch.setattr("feeder.cli.contact_sheet.draw_contact_sheet", keep)
    asked = ["--images", "4", "--batch-size", "16", "--index", "1"]
    asked += ["--recipe", "auto_augment=trivial-augment-wide"]
    cores = frozenset({choose_core(None)})
    with running_daemon(dataset, workers=1, cores=cores) as daemon:
        arguments = ["preview", "--from", daemon.ipc, *asked]
        assert feeder_main([*arguments, "--dataset", DATASET_NAME]) == 0
        assert feeder_main([*arguments, "--dataset", "other"]) == 3
        assert "other" in capsys.readouterr().err
        left_out = ["preview", "--from", daemon.ipc, "--dataset", DATASET_NAME, "--index", "9"]
        assert feeder_main(left_out) == 2
    assert feeder_main(["preview", str(dataset), *asked]) == 0
    (served, served_labels, served_notes), (local, local_labels, local_notes) = sheets
    assert np.array_equal(served, local)
    assert served_labels == local_labels
    # A client does not know the sizes of originals, and everything else.
    assert served_notes == [note._replace(facts=note.facts[:1]) for note in local_notes]
    assert all(note.facts[1].startswith("crop ") for note in local_notes)


def test_a_daemon_that_does_not_start_is_quoted(tmp_path: Path, short_folder: Path) -> None:
    cores = frozenset({choose_core(None)})
    with (
        pytest.raises(ResourceError, match=r"was not ready .*nowhere"),
        running_daemon(tmp_path / "nowhere", workers=1, cores=cores),
    ):
        pass
    assert list(short_folder.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_end_of_the_bench_leaves_a_process(
    dataset: Path, short_folder: Path, number: signal.Signals
) -> None:
    bench = subprocess.Popen(
        [sys.executable, "-m", "bench", "stream", str(dataset), "--rounds", "10000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(short_folder)},
    )
    started: set[psutil.Process] = set()
    try:
        while not any(runs(process, "feeder.worker") for process in started):
            assert bench.poll() is None
            started |= set(psutil.Process(bench.pid).children(recursive=True))
        bench.send_signal(number)
        status = bench.wait(30)
        _, alive = psutil.wait_procs(started, timeout=30)
    finally:
        bench.kill()
        bench.wait()
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    assert alive == []
    if number is not signal.SIGKILL:
        assert status == 128 + number
        assert list(short_folder.iterdir()) == []

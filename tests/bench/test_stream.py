"""``feeder-bench stream`` on a tiny set: rows, JSON, and nothing left behind."""

import contextlib
import itertools
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from bench.daemon import DATASET_NAME, running_daemon
from bench.fetcher import ClientProcess, await_open
from bench.line_process import LineProcess
from bench.machine import choose_core
from bench.report import RATE, Result, summarise
from bench.stream.call_counter import CallCounter
from bench.stream.run import row_beside
from bench.stream.stream_report import StreamReport
from bench.stream.streams import Delivered, stream_rows
from feeder.cli.contact_sheet import Note
from feeder.cli.main import main as feeder_main
from feeder.errors import PeerError
from tests.bench.rows import SAMPLES, Expected, alone, check_rows, draw, group, run_bench
from tests.support.daemon import runs

WAYS = ("ipc", "ipc-copy", "tcp", "ipc-2-clients", "tcp-2-clients")
SECURITY = {
    "stream/tcp-curve": "stream/tcp",
    "stream/tcp-beside-garbage": "stream/tcp",
    "stream/ipc-beside-garbage": "stream/ipc",
}


@pytest.fixture
def one_core() -> Iterator[None]:
    """Let the bench use one core; with more, the rows come again for each number of workers."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(usable)[:1])
    yield
    os.sched_setaffinity(0, usable)


def expected_rows() -> Expected:
    """Return units and baselines of the rows over one daemon with one worker."""
    rows = group(RATE, "sample/whole", *(f"stream/{way}" for way in WAYS))
    rows |= group("µs", *(f"handover/{name}" for name in ("memcpy", "client", "client-whole")))
    rows |= {f"stream/{way}-bytes": ("GB/s", None) for way in WAYS}
    for side, way in itertools.product(("daemon", "client"), WAYS):
        rows[f"stream/{way}-{side}-cpu"] = ("µs/image", None)
    for percent, way in itertools.product((50, 99), ("ipc", "ipc-copy", "tcp")):
        rows[f"stream/{way}-gap-p{percent}"] = ("ms", None)  # two clients have a batch each
    rows |= dict.fromkeys(("zmq/ipc", "zmq/tcp"), ("GB/s", "memcpy"))
    for transport, name in itertools.product(("ipc", "tcp"), ("zmq/{}-copied", "transport/{}")):
        rows[name.format(transport)] = ("GB/s", f"zmq/{transport}")
    return rows | alone(
        memcpy="GB/s",
        handover__socket_bytes="bytes a batch",
        handover__socket_bytes_copy="bytes a batch",
        handover__loader_cpu="µs",
        stream__first_batch="s",
        check__equal_to_local="samples",
        worker__own_memory="MiB",
        daemon__idle="% of a core",
    )


def test_names_and_baselines_of_rows(
    one_core: None,
    dataset: Path,
    tmp_path: Path,
    short_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--rounds", 1, "--batches", 2, "--idle", 0.2, "--clients", 2)
    document = run_bench(tmp_path, "stream", dataset, *options)
    assert list(short_folder.iterdir()) == []
    assert len(set(document["machine"]["cores_used"].values())) == 1
    assert document["measured"] == {"rounds": 1, "batches": 2, "batch size": SAMPLES, "clients": 2}
    # Of the rows of security, the baselines are not among the rows.
    others = [row for row in document["results"] if row["name"].startswith(("crypto", *SECURITY))]
    document["results"] = [row for row in document["results"] if row not in others]
    assert {row["name"]: row["baseline"] for row in others[:-1]} == SECURITY
    assert others[-1]["unit"] == "GB/s"
    rows = check_rows(document, expected_rows())
    for way in WAYS:
        gigabytes = rows[f"stream/{way}"]["value"] * 224 * 224 * 3 / 1e9
        assert rows[f"stream/{way}-bytes"]["value"] == pytest.approx(gigabytes)
    assert rows["handover/client"]["value"] < rows["handover/client-whole"]["value"]
    assert rows["handover/socket-bytes"]["value"] < 200
    assert rows["handover/socket-bytes-copy"]["value"] > SAMPLES * 224 * 224 * 3
    assert rows["check/equal-to-local"]["value"] == SAMPLES
    assert 10 < rows["worker/own-memory"]["value"] < 1000
    printed = capsys.readouterr().out
    assert printed.startswith("One worker delivers ")
    assert "stream/tcp" in printed


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


def test_a_line_that_arrives_in_parts_is_one_line() -> None:
    code = "import sys; print('on', end='', flush=True); sys.stdin.readline(); print('e')"
    with LineProcess([sys.executable, "-c", code]) as process:
        select.select([process], [], [])
        assert process.read_lines() == []
        process.write_line("go on")
        assert process.next_line(60) == "one"
        with pytest.raises(EOFError):
            process.next_line(60)


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
    first, workers, clients, transport = report.conclude()
    assert first == (
        "One worker delivers 900 images/s to a client on its host (ipc, read in place), 0.90 of "
        "what its core makes without a daemon, and 800 over tcp, 0.80 of it."
    )
    assert workers.endswith("deliver 1,800, 1.80 times what one core makes without a daemon.")
    assert clients.startswith("2 clients together get 1.00 times (ipc) and 1.00 times (tcp)")
    assert transport.startswith("Transport is not the limit: without decoding, tcp carries 2 GB/s")
    words = [" ".join(line.split()) for line in report.to_text().splitlines()]
    assert " ".join(words).startswith(first)
    without = "one process, without a daemon 1,000 1"
    assert words.count(without) == 2, "beside one worker, and beside two"
    assert "1 client, ipc, in place 900 0.90 200 900 50" in words
    assert "2 clients, tcp 800 0.80 900 50" in words


@pytest.mark.parametrize("rounds", [1, 3])
def test_only_several_rounds_are_drawn_with_their_spread(rounds: int, tmp_path: Path) -> None:
    drawn = draw(_report(rounds), tmp_path)
    assert ("least and most" in drawn) == (rounds > 1)
    assert ("no spread is known" in drawn) == (rounds == 1)
    for title in ("End to end with 1 worker", "End to end with 2 workers", "Cost with 1 worker"):
        assert title in drawn
    assert "Transport alone" in drawn
    assert "without a daemon" in drawn
    assert "sample/whole" not in drawn


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


# --- Calls ------------------------------------------------------------------------------------


def _inner() -> None:
    len("a C call, which does not count")


def _outer() -> None:
    _inner()
    _inner()


def test_calls_of_this_thread_and_of_those_that_it_starts_are_counted() -> None:
    counter = CallCounter()
    _outer()
    with counter:
        _outer()
        thread = threading.Thread(target=_inner)
        thread.start()
        thread.join()
    _outer()
    calls = counter.take()
    assert (calls[__file__, "_outer"], calls[__file__, "_inner"]) == (1, 3)
    assert counter.take().total() == 0


def test_rows_of_batches_and_hellos(
    dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, count in (("BATCHES", 32), ("HELLOS", 3), ("WARM_UP", 8)):
        monkeypatch.setattr(f"bench.stream.calls.{name}", count)
    document = run_bench(tmp_path, "stream", dataset, "--calls")
    rows = {row["name"]: row for row in document["results"]}
    ways = ("client", "node", "hello-client", "hello-node")
    assert list(rows) == [f"{kind}/{way}" for way in ways for kind in ("calls", "files")]
    for way in ways:
        calls = rows[f"calls/{way}"]["value"]
        assert 5 < rows[f"files/{way}"]["value"] < calls < 2000
        assert 0.5 < sum(document["functions"][f"calls/{way}"].values()) / calls < 2
    text = capsys.readouterr().out
    assert "feeder/session/table.py SessionTable.handle" in text
    assert "trainer_client/_numpy_loader.py" in text

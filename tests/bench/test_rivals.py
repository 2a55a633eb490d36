"""``feeder-bench peers`` with our real contenders and made-up rivals."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from PIL import Image

from bench.cli import main
from bench.data.synthetic import write_synthetic
from bench.machine import choose_core
from bench.rivals import run as rivals
from bench.rivals import setup
from bench.rivals.catalogue import CONTENDERS, Contender, Environment, Quality
from bench.rivals.process import RivalFailure, RivalProcess, last_line
from bench.rivals.report import CPU_RATE, ContenderNotes, RivalsReport, build_results
from feeder.dataset.opened import Dataset
from tests.bench.fake_rival import make_environment
from tests.bench.rows import draw
from tests.support.sources import REPOSITORY

FAKE = Path(__file__).parent / "fake_rival.py"
RATES = {
    "peers/feeder": [1000.0, 1100.0, 900.0],
    "peers/quick": [600.0, 500.0, 550.0],
    "peers/good": [400.0, 450.0, 300.0],
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers") / "source"
    write_synthetic(folder, images=7, classes=2, seed=3, jobs=1)
    return folder


def _fake(name: str, environment: str = "fake") -> Contender:
    """A contender whose variant is its name."""
    quality = Quality(resize="bilinear, antialiased", decodes="nothing")
    return Contender(f"peers/{name}", name, FAKE, environment, quality, variant=name)


@pytest.fixture
def environments(tmp_path: Path) -> Path:
    """Environments of which ``fake`` is installed (our own Python) and ``broken`` failed."""
    folder = tmp_path / "environments"
    make_environment(folder)
    (folder / "broken").mkdir()
    (folder / "broken" / "failed.txt").write_text("$ pip\nERROR: no wheel for this machine\n\n")
    return folder


@pytest.mark.extensive("a whole run of the bench, with environments that cannot be used")
def test_every_contender_has_a_row_or_a_reason(
    source: Path,
    environments: Path,
    tmp_path: Path,
    short_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ours = [each for each in CONTENDERS if each.environment is None]
    fakes = ("fine", "chatty", "black", "wrong", "crash", "crash-later")
    contenders = (
        *ours,
        *map(_fake, fakes),
        _fake("absent", environment="nowhere"),
        _fake("broken", environment="broken"),
    )
    monkeypatch.setattr(rivals, "CONTENDERS", contenders)
    monkeypatch.setattr(rivals, "_WARM_UP_BATCHES", 1)
    out = tmp_path / "peers.json"
    arguments = ["--rounds", "2", "--batches", "1", "--images", "130", "--cores", "one"]
    arguments += ["--json", str(out), "--environments", str(environments)]
    before = os.sched_getaffinity(0)
    assert main(["peers", str(source), *arguments]) == 0
    assert os.sched_getaffinity(0) == before
    assert list(short_folder.iterdir()) == []

    report = json.loads(out.read_text())
    assert report["machine"]["images"]["read"] == 133  # whole copies of the seven
    assert report["machine"]["cores_used"] == {"one core": str(choose_core(None))}
    rows = {row["name"]: row for row in report["results"]}
    against = ("feeder-against-fastest", "feeder-against-fastest-antialiased")
    measured = ("feeder", "feeder-daemon", "fine", "chatty")
    for kind, unit in (("peers", "images/s"), ("cpu", "images/s of CPU time")):
        for name in (*measured, *against):
            row = rows.pop(f"{kind}/{name}")
            assert row["unit"] == unit
            assert 0 < row["min"] <= row["value"] <= row["max"]
            fastest = (f"{kind}/fine", f"{kind}/chatty")
            usual = (None,) if name == "feeder" else (f"{kind}/feeder",)
            assert row["baseline"] in (fastest if name in against else usual)
            if (kind, name) == ("cpu", against[0]):
                assert 0 < row["ratio"] < 1  # making nothing is faster than making pictures
    assert rows == {}

    notes = {each["name"].removeprefix("peers/"): each for each in report["contenders"]}
    missing = {name: each["missing"] or "" for name, each in notes.items()}
    assert {name for name, reason in missing.items() if not reason} == set(measured)
    for name, reason in {
        "absent": "not installed: run `make peers`",
        "broken": "cannot be installed: ERROR: no wheel for this machine",
        "crash": "ended with status 1: fake: there is no such library",
        "crash-later": "ended with status 1: ValueError: the second batch is too much",
        "wrong": "ended with status 1: not a batch of bytes: uint8 (128, 223, 224, 3)",
        "black": "does not deliver these images: its mean level is 0, ours ",
    }.items():
        assert missing[name].startswith(reason)
    assert notes["fine"]["versions"] == {"fake": "1.2", "images": "133"}
    assert notes["fine"]["quality"]["resize"] == "bilinear, antialiased"
    assert "libjpeg-turbo" in " ".join(notes["feeder"]["versions"])
    text = capsys.readouterr().out
    for words in (*missing, *missing.values(), "one core", "what their pixels are made of"):
        assert words in text


def _run(tmp_path: Path, variant: str, *, deadline_s: float = 60) -> RivalProcess:
    listing = tmp_path / "list"
    listing.write_text("a.jpg\t0\t5\t5\n")
    return RivalProcess(
        sys.executable,
        FAKE,
        listing,
        {"folder": tmp_path, "batch": 4, "variant": variant},
        cores=frozenset({choose_core(None)}),
        log=tmp_path / "log",
        works_ahead=variant == "ahead",
        deadline_s=deadline_s,
    )


def test_a_contender_that_hangs_is_ended_at_the_deadline(tmp_path: Path) -> None:
    with _run(tmp_path, "hang", deadline_s=0.2) as rival:
        process = psutil.Process(rival.pid)
        with pytest.raises(RivalFailure, match=r"did not send 'ready' within 0\.2 s"):
            rival.introduce()
    assert not process.is_running()


BENCH = """
import sys
from pathlib import Path
from tests.bench.test_rivals import _run
rival = _run(Path(sys.argv[1]), "ahead")
rival.introduce()
print(rival.pid, flush=True)
sys.stdin.read()
"""


def test_killing_the_bench_leaves_no_contender(tmp_path: Path) -> None:
    """Nor one that is stopped because it is not its turn."""
    command = [sys.executable, "-c", BENCH, tmp_path]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=pipe, stdout=pipe) as bench:
        assert bench.stdout is not None
        contender = psutil.Process(int(bench.stdout.readline()))
        bench.kill()
    _, alive = psutil.wait_procs([contender], timeout=30)
    for process in alive:
        process.kill()
    assert not alive


def test_no_contender_works_outside_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = tmp_path / "counter"
    busy_s = itertools.count(step=1000)
    monkeypatch.setattr("bench.rivals.process.busy_s", lambda _: next(busy_s))
    with _run(tmp_path, "ahead") as rival:
        rival.introduce()
        process = psutil.Process(rival.pid)
        while process.status() != psutil.STATUS_STOPPED:
            pass
        before = counter.read_text()
        while counter.read_text() == before:
            rate, cpu_rate = rival.take_turn(8)
            assert (cpu_rate, rate > 1) == (8 / 1000, True)
            while process.status() != psutil.STATUS_STOPPED:
                pass
    assert not process.is_running()


def test_the_sample_is_repeated_and_files_that_not_all_can_read_are_left_out(
    tmp_path: Path, short_folder: Path
) -> None:
    folder = tmp_path / "source"
    write_synthetic(folder, images=3, classes=2, seed=4, jobs=1)
    odd = next(path for path in folder.iterdir() if path.is_dir())
    (odd / "broken.jpg").write_bytes(next(odd.glob("*.jpg")).read_bytes()[:900])
    (odd / "words.txt").write_text("no image")
    Image.new("CMYK", (40, 30)).save(odd / "cmyk.jpg")
    Image.new("RGB", (40, 30)).save(odd / "png.jpg", "PNG")
    with rivals.prepare_material(folder, images=10) as material:
        rows = [line.split("\t") for line in material.listing.read_text().splitlines()]
        assert (material.images, material.distinct, material.left_out) == (12, 3, 4)
        assert len(rows) == 12
        for path, label, width, height in rows:
            with Image.open(path) as image:
                assert image.size == (int(width), int(height))
            assert label in ("0", "1")
        with Dataset.open(material.dataset) as dataset:
            assert dataset.layout.samples == 12
    assert list(short_folder.iterdir()) == []


def test_our_own_contenders_are_always_measured() -> None:
    chosen = [each.name for each in rivals.choose_contenders("dali,ffcv")]
    assert chosen == ["peers/feeder", "peers/feeder-daemon", "peers/ffcv", "peers/dali"]


def test_environments_are_made_and_checked_and_keep_the_reason_of_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {
        "empty": Environment("json", steps=()),
        "wrong": Environment("json", steps=(("--no-index", "no-such-thing"),)),
        "lame": Environment("no_such_module", steps=()),
    }
    monkeypatch.setattr(setup, "ENVIRONMENTS", made)
    assert main(["peers-setup", "--folder", str(tmp_path)]) == 0
    assert setup.why_missing("empty", tmp_path) is None
    reason = setup.why_missing("wrong", tmp_path)
    assert reason is not None
    assert reason.startswith("cannot be installed: ERROR: No matching distribution")
    assert "no_such_module" in str(setup.why_missing("lame", tmp_path))
    assert setup.why_missing("never", tmp_path) == "not installed: run `make peers`"
    assert "2 cannot be installed" in capsys.readouterr().out
    assert last_line("one\n\x1b[31mtwo\x1b[0m\n\n", before=": ") == ": two"
    assert len(last_line("x" * 5000)) == 300
    before = (tmp_path / "empty" / "installed.txt").stat()
    assert setup.make_environment("empty", tmp_path) is None
    assert (tmp_path / "empty" / "installed.txt").stat() == before


def _report(rates: Mapping[str, Sequence[float]] = RATES) -> RivalsReport:
    notes = [
        ContenderNotes(
            name=name,
            versions={"lib": "1"},
            quality={"resize": "a", "decodes": "b", "idct": "c", "chroma": "d", "source": "e"},
            antialiased=name != "peers/quick",
            ours=name == "peers/feeder",
            missing=None,
        )
        for name in rates
    ]
    results = [*build_results(rates, notes), *build_results(rates, notes, unit=CPU_RATE)]
    notes.append(replace(notes[-1], name="peers/lame", missing="not installed"))
    return RivalsReport(
        bench="peers",
        machine={"cpu": "x"},
        measured={"rounds": len(rates["peers/feeder"]), "batches": 8, "batch size": 128},
        results=results,
        contenders=notes,
    )


def test_the_conclusion_names_the_fastest_others() -> None:
    first, missing = _report().conclude()
    assert first == (
        "On one core, Feeder is 1.67 times as fast as quick, the fastest other loader, and 2.50 "
        "times as fast as good, the fastest with the same resizing."
    )
    assert missing == "Not measured, for the reasons in the table: lame."
    assert " ".join(_report().to_text().split()).startswith(first)


def test_ratios_are_medians_of_the_rounds() -> None:
    report = _report()
    rows = {row.name: row for row in report.results}
    assert rows["peers/quick"].ratio == pytest.approx(0.6)  # of 0.6, 0.4545, 0.6111
    fastest = rows["peers/feeder-against-fastest"]
    assert (fastest.baseline, fastest.ratio) == ("peers/quick", pytest.approx(1000 / 600))
    antialiased = rows["peers/feeder-against-fastest-antialiased"]
    assert (antialiased.baseline, antialiased.ratio) == ("peers/good", pytest.approx(2.5))
    lines = [line.split() for line in report.to_text().splitlines()]
    shown = [line[0] for line in lines if line and line[0] in ("feeder", "quick", "good")]
    assert shown[:3] == ["feeder", "quick", "good"]  # fastest first
    assert any(line[:6] == ["quick", "550", "500", "600", "1.67", "×"] for line in lines)


def test_bars_are_drawn(tmp_path: Path) -> None:
    drawn = draw(_report(), tmp_path)
    for words in ("least and most of the", "550  (Feeder × 1.67)", "Not measured"):
        assert words in drawn

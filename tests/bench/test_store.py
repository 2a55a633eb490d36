"""``feeder-bench store``: what it finds missed, and what the client library alone downloads."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cli import main
from bench.report import Result, single
from bench.store import run as store
from bench.store import scene
from bench.store.alone import download
from bench.store.scene import NAME
from tests.bench.rows import RATE, alone, check_rows, group
from tests.support.stores import loopback_store

ROWS = {
    row.name: row
    for row in [
        *(
            replace(single(name, unit, value), baseline=baseline, ratio=ratio)
            for name, unit, value, baseline, ratio in [
                ("warm/remote", "images/s", 980.0, "warm/local", 0.98),
                ("cold/fetch", "MB/s", 920.0, "cold/obstore", 0.92),
                ("epoch/cold", "s", 11.0, "epoch/least", 1.1),
                ("epoch/cold-slow", "s", 21.0, "epoch/least-slow", 1.05),
            ]
        ),
        single("first/needed", "s", 0.5),
        single("first/batch", "s", 3.4),
        single("epoch/cold/left", "datasets", 1.0),
        single("small/from-disk", "datasets", 0.31),
        single("peers/left", "datasets", 0.012),
        single("peers/copied", "datasets", 0.12),
        single("killed/left", "datasets", 0.21),
        single("killed/copied", "datasets", 0.15),
    ]
}


def test_a_run_that_meets_every_target_has_not_failed() -> None:
    assert store.judge([*ROWS.values()]) == []
    report = store.StoreReport(bench="store", machine={}, results=[*ROWS.values()], failures=())
    assert report.conclude() == [
        "A warm cache serves 0.98 of the local rate.",
        "`feeder cache fetch` reaches 0.92 of the client library alone, at 920 MB/s.",
        "The first batch of a cold dataset took 3.4 s, of which the store needs 0.5 s.",
        "A cold first epoch takes 1.10 times as long as the larger of computing and transferring.",
        "A cold first epoch from a slow store takes 1.05 times as long as the larger of computing "
        "and transferring.",
        "With a cache of 30% of the dataset, later epochs read 31% of it from the disk.",
        "4 feeders with such caches read 1.2% of it from the store in later epochs and copy 12% "
        "from each other; once one is killed, 21% and 15%.",
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (replace(ROWS["warm/remote"], ratio=0.9), "warm/remote is 0.900 of warm/local; 0.97 is"),
        (replace(ROWS["cold/fetch"], ratio=0.8), "cold/fetch is 0.800 of cold/obstore; 0.9 is"),
        (
            replace(ROWS["epoch/cold"], ratio=1.2),
            "epoch/cold is 1.200 of epoch/least; at most 1.15",
        ),
        (
            single("peers/left", "datasets", 0.061),
            "0.061 datasets left the store in peers; at most 0.05",
        ),
        (
            single("epoch/cold/left", "datasets", 1.3),
            "1.300 datasets left the store in epoch/cold; each byte once",
        ),
        (single("first/batch", "s", 3.6), "the first batch took 3.60 s; at most 3.50 s"),
    ],
)
def test_a_missed_target_is_a_reason(row: Result, reason: str) -> None:
    (failure,) = store.judge([*(ROWS | {row.name: row}).values()])
    assert failure.startswith(reason)


def test_a_target_that_is_missed_within_the_noise_is_none() -> None:
    noisy = replace(ROWS["warm/remote"], ratio=0.96, ratio_low=0.93, ratio_high=0.98)
    assert store.judge([noisy]) == []


def test_an_unknown_part_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "--parts", "warm,hot"]) == 2
    assert "--parts hot is no part: name some of warm, cold, " in capsys.readouterr().err


def test_the_library_alone_writes_the_same_files(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="the extra `stores` is not installed")
    with loopback_store({NAME: dataset}) as running:
        for name, text in running.environ().items():
            monkeypatch.setenv(name, text)
        download("bucket", NAME, tmp_path)
        left = running.body_bytes()
    names = [*(path.name for path in tmp_path.iterdir())]
    assert sum(map(len, (dataset.joinpath(name).read_bytes() for name in names))) == left
    assert all((tmp_path / name).read_bytes() == (dataset / name).read_bytes() for name in names)


@pytest.mark.extensive("half a minute of epochs from a store")
def test_every_row_of_a_small_run(
    tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="the extra `stores` is not installed")
    with loopback_store({}):  # skips without nginx
        pass
    monkeypatch.setattr(store, "_DISTINCT", 64)
    monkeypatch.setattr(scene, "WINDOWS", 2)
    monkeypatch.setattr(scene, "USUAL_BATCH_SIZE", 32)
    out = tmp_path / "rows.json"
    parts = "warm,cold,first,epoch,small"
    settings = ["--quick", "--gib", "0.4", "--parts", parts, "--json", str(out)]
    main(["store", *settings])  # too small to meet targets
    document = json.loads(out.read_text("utf-8"))
    ways = [f"cold/{way}{suffix}" for suffix in ("", "-limited") for way in ("obstore", "fetch")]
    expected = group(RATE, "warm/local", "warm/remote")
    expected |= group(RATE, "warm/local/cpu", "warm/remote/cpu")
    for cpu in ("", "/cpu"):
        expected |= group("MB/s", *(f"{way}{cpu}" for way in ways[:2]))
        expected |= group("MB/s", *(f"{way}{cpu}" for way in ways[2:]))
    expected |= group("s", "epoch/least", "epoch/cold")
    expected |= group("s", "epoch/least-limited", "epoch/cold-limited")
    expected |= group("s", "epoch/least-slow", "epoch/cold-slow")
    for name in ("epoch/cold/cpu", "epoch/cold-limited/cpu", "epoch/cold-slow/cpu"):
        expected |= group("s", "epoch/local/cpu", name)
    expected |= alone(epoch__local="s", first__ready="s", first__needed="s", first__batch="s")
    expected |= alone(small__rate=RATE, small__left="datasets", small__from_disk="datasets")
    expected |= alone(epoch__cold__left="datasets", epoch__cold_slow__left="datasets")
    expected |= alone(epoch__cold_limited__left="datasets")
    expected |= alone(warm__left="datasets", cpu__nginx="s/GB", cpu__proxy="s/GB")
    rows = check_rows(document, expected)
    assert rows["warm/left"]["value"] == 0
    assert rows["epoch/cold/left"]["value"] == pytest.approx(1, abs=0.01)
    assert rows["epoch/cold-slow/left"]["value"] == pytest.approx(1, abs=0.01)
    assert 0 < rows["small/from-disk"]["value"] < 0.5
    assert 0 < rows["first/needed"]["value"] < 1
    assert list(short_folder.iterdir()) == []

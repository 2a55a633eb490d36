"""What ``feeder-bench decode`` prints and draws: conclusion, short tables, picture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.micro.decode_report import DecodeReport
from bench.report import RATE, Result, compare, single
from tests.bench.rows import draw

ROUNDS = (0.98, 0.99, 1.0, 1.01, 1.02)

RATES: Mapping[str, float] = {
    "decode/full": 800,
    "decode/full-libraries": 780,
    "decode/pillow": 600,
    "decode/tiled": 3600,
    "decode/tiled-turbojpeg": 1600,
    "decode/tiled-unscaled": 3500,
    "sample/full": 750,
    "sample/full-libraries": 650,
    "sample/pillow": 550,
    "sample/whole": 2750,
    "sample/tiled-turbojpeg": 1400,
    "sample/whole-unscaled": 2500,
    "sample/decoded-cache": 7000,
    "sample/decoded-cache-unscaled": 7000,
    "sample/filling-cache": 2750,
}

AGAINST = {
    "decode/tiled-against-pillow": "decode/pillow",
    "decode/tiled-against-turbojpeg": "decode/tiled-turbojpeg",
    "sample/whole-against-pillow": "sample/pillow",
    "sample/whole-against-libraries": "sample/full-libraries",
    "sample/whole-against-turbojpeg": "sample/tiled-turbojpeg",
    "sample/whole-against-unscaled": "sample/whole-unscaled",
    "sample/decoded-cache-against-unscaled": "sample/decoded-cache-unscaled",
    "sample/filling-cache": "sample/whole",
}


def _report(*, small: float = 2.0, size: float = 1.0, **changed: float) -> DecodeReport:
    """Return a report of the rates with ``changed`` ones.

    ``small`` is the gain of small images; ``size`` the ratio of the blobs' bytes to those of JPEGs.
    """
    rates = {**RATES, **{f"sample/{name.replace('_', '-')}": r for name, r in changed.items()}}
    values = {name: [rate * factor for factor in ROUNDS] for name, rate in rates.items()}
    whole = [rates["sample/whole"] * factor for factor in ROUNDS[::-1]]  # not in step with others
    kinds = {name: f"{name.partition('/')[0]}/full" for name in values}
    rows = [
        *compare(values, RATE, {**kinds, "decode/full": None, "sample/full": None}),
        *compare(values | {"sample/whole": whole}, RATE, AGAINST),
        *compare({"dataset/jpeg": [100_000], "dataset/blob": [size * 100_000]}, "bytes/image"),
        single("crops/scaled", "%", 3.5),
    ]
    name = "sample/whole-against-turbojpeg/small"
    rows.append(Result(name=name, value=1, unit=RATE, min=1, max=1, baseline="x", ratio=small))
    machine = {
        "cpu": "Test CPU",
        "cores_used": {"all contenders": 3},
        "decoder": "own (avx2)",
        "libraries": {"libjpeg-turbo": "2.1.5", "pillow": "12.1"},
    }
    measured = {"images": 201, "rounds": 5}
    return DecodeReport(bench="decode", machine=machine, results=rows, measured=measured)


def test_conclusion_is_first_and_names_winner_ratios_and_spread() -> None:
    text = " ".join(_report().to_text().split())
    assert text.startswith("Feeder is the fastest: 2,750 training samples/s on one core, 3.67 (")
    assert "times as many as with TurboJPEG's full decode" in text
    assert "5.00 (4.80–5.20) times as many as Pillow alone." in text
    assert "4.50 (4.50–4.50) times as fast as TurboJPEG decodes the whole image" in text
    assert "6.00 (6.00–6.00) times Pillow, and 2.25 (2.25–2.25) times TurboJPEG on the same" in text
    assert "medians of 5 rounds; ratios are of the same rounds. In brackets: the 90 % " in text
    assert "cores used: all contenders 3 decoder: own (avx2)" in text
    assert "Where it loses" not in text
    assert "TurboJPEG, whole image 800 784–816 1 " in text


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"pillow": 5500}, "Pillow alone is the fastest; Feeder, 0.50 (0.48–0.52) of it, makes"),
        ({"pillow": 2750}, "Feeder is as fast as Pillow alone within the noise, 1.00 (0.96–1.04)"),
        ({"small": 1.2}, "small gain over TurboJPEG on the same tiles (small 1.20)"),
        ({"size": 1.04}, "the dataset takes 1.04 times the bytes of ordinary JPEGs"),
        ({"whole_unscaled": 5500}, "DCT scaling gives 0.50 (0.48–0.52) of the rate without it"),
        ({"filling_cache": 2200}, "an empty decoded cache leaves 0.80 (0.77–0.83) of the rate"),
    ],
)
def test_the_fastest_and_each_loss_beyond_the_noise_is_named(
    changed: Mapping[str, Any], words: str
) -> None:
    assert words in " ".join(_report(**changed).conclude())


def test_the_picture_shows_all_ways(tmp_path: Path) -> None:
    drawn = draw(_report(), tmp_path)
    for words in ("PyTurboJPEG, whole image", "images/s: bar the median", "Test CPU"):
        assert words in drawn

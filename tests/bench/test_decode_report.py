"""What ``feeder-bench decode`` prints and draws: conclusion, short tables, picture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.micro.decode_report import DecodeReport
from bench.report import RATE, Result, compare, single

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
}

AGAINST = {
    "decode/tiled-against-pillow": "decode/pillow",
    "decode/tiled-against-turbojpeg": "decode/tiled-turbojpeg",
    "sample/whole-against-pillow": "sample/pillow",
    "sample/whole-against-libraries": "sample/full-libraries",
    "sample/whole-against-turbojpeg": "sample/tiled-turbojpeg",
    "sample/whole-against-unscaled": "sample/whole-unscaled",
    "sample/decoded-cache-against-unscaled": "sample/decoded-cache-unscaled",
}


def _report(
    *,
    fill: float = 0.0,
    fill_spread: float = 0.0,
    small: float | None = None,
    size: float = 1.0,
    pillow: str = "12.1",
    decoder: str = "own (avx2)",
    **changed: float,
) -> DecodeReport:
    """Return a report of the rates with ``changed`` ones.

    ``fill`` is in per cent of the time; ``fill_spread`` is how much more in one round of five, and
    less in another. ``size`` is the ratio of the blobs' bytes to those of ordinary JPEGs.
    """
    rates = {
        **RATES,
        **{name.replace("__", "/").replace("_", "-"): r for name, r in changed.items()},
    }
    values = {name: [rate * factor for factor in ROUNDS] for name, rate in rates.items()}
    whole = rates["sample/whole"]
    noisy = [whole * factor for factor in ROUNDS[::-1]]  # not in step with others
    filling = [whole * 100 / (100 + fill + step * fill_spread) for step in (-1, 0, 0, 0, 1)]
    steady = {"sample/whole": [whole] * len(ROUNDS), "sample/filling-cache": filling}
    fulls = dict.fromkeys(values, "decode/full") | {
        name: "sample/full" for name in values if name.startswith("sample")
    }
    rows = [
        *compare(values, RATE, {**fulls, "decode/full": None, "sample/full": None}),
        *compare(values | {"sample/whole": noisy}, RATE, AGAINST),
        *compare(steady, RATE, {"sample/filling-cache": "sample/whole"}),
        *compare({"dataset/jpeg": [100_000], "dataset/blob": [size * 100_000]}, "bytes/image"),
    ]
    if small is not None:
        name = "sample/whole-against-turbojpeg/small"
        rows.append(Result(name=name, value=1, unit=RATE, min=1, max=1, baseline="x", ratio=small))
    rows += [single("crops/scaled", "%", 3.5), single("decoded-cache/fill", "%", fill)]
    machine = {
        "cpu": "Test CPU",
        "cores_used": {"all contenders": 3},
        "decoder": decoder,
        "libraries": {"libjpeg-turbo": "2.1.5", "pillow": pillow},
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
    assert "201 images, a crop of each in each of 5 rounds, on core 3 of Test CPU" in text
    assert "decoder own (avx2); libjpeg-turbo 2.1.5, pillow 12.1." in text
    assert "Where it loses" not in text


@pytest.mark.parametrize(
    ("pillow", "head"),
    [
        (5500, "Pillow alone is the fastest; Feeder, 0.50 (0.48–0.52) of it, makes"),
        (2750, "Feeder is as fast as Pillow alone within the noise, 1.00 (0.96–1.04)"),
    ],
)
def test_the_fastest_is_named_if_it_is_beyond_the_noise(pillow: float, head: str) -> None:
    assert _report(sample__pillow=pillow).conclude().startswith(head)


@pytest.mark.parametrize(
    ("changed", "loss"),
    [
        ({"small": 1.2}, "small gain over TurboJPEG on the same tiles (small 1.20)"),
        ({"size": 1.04}, "the dataset takes 1.04 times the bytes of ordinary JPEGs"),
        ({"sample__whole_unscaled": 2750}, "DCT scaling gains nothing measurable: 1.00 ("),
        ({"fill": 11.4}, "filling an empty decoded cache takes 11 % (11–11 %) more time"),
        # Filling takes as much as 1 % only, and beyond the noise.
        ({"fill": 0.3, "fill_spread": 0.1}, None),
    ],
)
def test_each_loss_is_said_and_no_gain_nor_noise(changed: Any, loss: str | None) -> None:
    losses = _report(**changed).find_losses()
    assert (losses == []) if loss is None else (loss in losses[0])


def test_picture_has_the_conclusion_as_its_title(tmp_path: Path) -> None:
    pytest.importorskip("altair", reason="the plots extra is not installed")
    from bench.plots.decode import conclude_decode
    from bench.plots.draw import write_plot

    write_plot(_report(), tmp_path / "decode.png")
    assert (tmp_path / "decode.png").read_bytes().startswith(b"\x89PNG")
    write_plot(_report(), tmp_path / "decode.svg")
    drawn = (tmp_path / "decode.svg").read_text().replace("&#39;", "'").replace("&apos;", "'")
    assert drawn.startswith("<svg")
    title, subtitle = conclude_decode(_report())
    assert " ".join(title) == (
        "One core makes 2,750 training samples/s with Feeder, "
        "3.7 times TurboJPEG's full decode, 5.0 times Pillow"
    )
    assert max(map(len, subtitle)) <= 125
    for words in (*title, "PyTurboJPEG, whole image", "images/s: bar the median"):
        assert words in drawn

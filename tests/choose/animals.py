"""Two small datasets, and ``feeder select`` of them."""

from pathlib import Path

from feeder.dataset.format import Oddity
from tests.support.sources import call_feeder
from tests.support.synthetic_sets import Sample, tiled_image, write_set

CATS = ("cat", "dog", "fox")
BIRDS = ("owl", "cat")


def write_animals(folder: Path) -> Path:
    """Write ``cats``, 23 samples of 3 classes, and ``birds``, 11 of 2, one of both names."""
    for name, classes, count in (("cats", CATS, 23), ("birds", BIRDS, 11)):
        samples = [
            Sample(
                name=f"{name[:-1]}{number:02}.jpg",
                tiled=tiled_image(16 + 2 * number, 16, number),
                label=number % len(classes),
                flags=Oddity.CMYK if number % 5 == 0 else Oddity(0),
            )
            for number in range(count)
        ]
        write_set(folder / name, samples, classes=classes, shards=3)
    return folder


def select(home: Path, *arguments: str, name: str = "s") -> Path:
    """Run it with these arguments, in which datasets are named without their folder."""
    out = home / f"{name}.sel"
    words = [str(home / word) if (home / word).exists() else word for word in arguments]
    result = call_feeder("select", name, *words, "--out", out)
    assert result.returncode == 0, result.stderr
    return out


def refused(home: Path, *arguments: str) -> str:
    """Run it likewise; return the one line that it ends with, having written nothing."""
    out = home / "refused.sel"
    words = [str(home / word) if (home / word).exists() else word for word in arguments]
    result = call_feeder("select", "x", *words, "--out", out)
    assert result.returncode in (2, 3), result.stdout
    assert not out.exists(), "nothing is half-written"
    assert result.stderr.count("\n") == 1
    return result.stderr

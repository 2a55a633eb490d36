"""The command behind `make exact`: its exit status is 1 if a byte differs."""

import argparse
import sys
from pathlib import Path

from tests.exact.run import compare, format_table, total

_SAMPLE = Path(__file__).resolve().parents[3] / "shared" / "data" / "imagenet-sample"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.exact", description=__doc__)
    parser.add_argument("--images", type=Path, default=_SAMPLE, help="class folders of JPEGs")
    parser.add_argument("--crops", type=int, default=40_000, help="half of them of real images")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not options.images.is_dir():
        _log(f"feeder: exact: {options.images} is missing: synthetic images only (--images FOLDER)")
    tally = compare(options.images, options.crops, options.seed, _log)
    _log(format_table(tally))
    return int(total(tally).differing_bytes.total() > 0)


def _log(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

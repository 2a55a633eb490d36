"""The command behind `make exact`: its exit status is 1 if a byte differs."""

import argparse
import sys
from pathlib import Path

from tests.exact.run import (
    UNLIKE_PILLOW,
    compare,
    compare_damaged,
    differing_bytes,
    format_outcomes,
    format_table,
)

_SAMPLE = Path(__file__).resolve().parents[3] / "shared" / "data" / "imagenet-sample"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.exact", description=__doc__)
    parser.add_argument("--images", type=Path, default=_SAMPLE, help="class folders of JPEGs")
    parser.add_argument("--crops", type=int, default=40_000, help="half of them of real images")
    parser.add_argument("--damaged", type=int, metavar="N", help="N damaged JPEGs instead")
    parser.add_argument("--seed", type=int, default=0, help="the first one's, if damaged")
    options = parser.parse_args()
    if not options.images.is_dir():
        _log(f"feeder: exact: {options.images} is missing: synthetic images only (--images FOLDER)")
    if options.damaged is not None:
        outcomes, tally = compare_damaged(options.images, options.damaged, options.seed, _log)
        _log(format_outcomes(outcomes))
        is_exact = outcomes[UNLIKE_PILLOW] == 0
    else:
        tally = compare(options.images, options.crops, options.seed, _log)
        is_exact = True
    _log(format_table(tally))
    return int(differing_bytes(tally) > 0 or not is_exact)


def _log(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

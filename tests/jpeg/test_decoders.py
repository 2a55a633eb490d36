"""The names of the decoders, and how they are shown."""

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from feeder.jpeg import _native
from feeder.jpeg.decode import VERSIONS, describe_decoder
from feeder.jpeg.decoders import DECODERS, Decoder


def test_every_decoder_is_listed() -> None:
    assert get_args(Decoder) == DECODERS


def test_our_own_decoder_is_shown_with_the_version_that_this_cpu_runs() -> None:
    assert describe_decoder("turbojpeg") == "turbojpeg"
    assert describe_decoder("own") == f"own ({VERSIONS[-1]})"


def test_naming_a_decoder_loads_no_library() -> None:
    """Configuration and messages are imported before the libraries are checked."""
    code = (
        "import feeder.jpeg.decoders, sys\n"
        "print({'numpy', 'PIL', 'turbojpeg', 'feeder.jpeg._native'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.skipif(
    not {"avx2", "bmi2"} <= {*Path("/proc/cpuinfo").read_text().split()},
    reason="this CPU has no AVX2 or BMI2",
)
@pytest.mark.parametrize(
    ("vendor", "family", "is_fast"),
    [
        ("AuthenticAMD", 0x15, False),  # Excavator
        ("AuthenticAMD", 0x17, False),  # Zen and Zen 2
        ("AuthenticAMD", 0x19, True),  # Zen 3 and Zen 4
        ("AuthenticAMD", 0x1A, True),
        ("HygonGenuine", 0x18, False),  # Zen
        ("GenuineIntel", 6, True),
        ("CentaurHauls", 7, True),
    ],
)
def test_cpus_that_take_long_for_pdep_do_without_it(
    vendor: str, family: int, is_fast: bool
) -> None:
    versions = _native.decode_versions(vendor, family)
    assert versions[:2] == ("portable", "avx2-no-pdep")
    assert versions[2:3] == (("avx2",) if is_fast else ())

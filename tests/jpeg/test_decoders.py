"""The names of the decoders, and how they are shown."""

import subprocess
import sys
from typing import get_args

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

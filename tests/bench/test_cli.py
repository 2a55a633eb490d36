"""The command line of ``feeder-bench``: valid arguments, and one line for invalid ones."""

import subprocess
import sys

import pytest

from bench.cli import build_parser


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("decode --rounds 0", "argument --rounds: 0 is not 1 or more"),
        ("decode --rounds many", "argument --rounds: 'many' is no whole number"),
        ("decode --rounds 1.5", "argument --rounds: '1.5' is no whole number"),
        ("chaos --minutes long", "argument --minutes: 'long' is no number"),
        ("stream --soak nan", "argument --soak: nan is not between 0 and 100000"),
        ("chaos --seed 1.5", "argument --seed: invalid int value: '1.5'"),
        (
            "decode --decoder pillow",
            "argument --decoder: invalid choice: 'pillow' (choose from 'own', 'turbojpeg')",
        ),
        ("peers --batches 0", "argument --batches: 0 is not 1 or more"),
        ("peers --deadline nan", "argument --deadline: nan is not between 0 and 100000"),
        ("peers --deadline -1", "argument --deadline: -1 is not between 0 and 100000"),
    ],
)
def test_an_invalid_argument_is_refused_in_one_line(
    arguments: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        build_parser().parse_args(arguments.split())
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: {complaint}")


@pytest.mark.parametrize(
    "bench",
    [
        "decode",
        "stream",
        "ablate",
        "chaos",
        "gpu",
        "loaders",
        "training-step",
        "resume",
        "peers",
        "normalise",
        "loss",
        "pack",
        "cluster",
    ],
)
def test_every_default_is_a_valid_argument(bench: str) -> None:
    parser = build_parser()
    defaults = vars(parser.parse_args([bench]))
    typed = [bench]
    for name, value in defaults.items():
        if isinstance(value, int | float) and not isinstance(value, bool):  # no flags
            typed += [f"--{name.replace('_', '-')}", str(value)]
    assert vars(parser.parse_args(typed)) == defaults


def test_the_command_itself_needs_no_torch() -> None:
    code = "import bench.cli, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

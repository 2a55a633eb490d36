"""The command line of ``feeder-bench``: valid arguments, and one line for invalid ones."""

import subprocess
import sys

import pytest

from bench.cli import build_parser


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("decode --rounds 0", "argument --rounds: 0 is not above 0, and 1e+09 at most"),
        ("decode --rounds many", "argument --rounds: 'many' is no whole number"),
        ("chaos --minutes long", "argument --minutes: 'long' is no number"),
        ("stream --soak 0", "argument --soak: 0 is not above 0, and 1e+09 at most"),
        ("stream --soak nan", "argument --soak: nan is not above 0, and 1e+09 at most"),
        ("chaos --seed 1.5", "argument --seed: invalid int value: '1.5'"),
    ],
)
def test_an_invalid_argument_is_refused_in_one_line(
    arguments: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        build_parser().parse_args(arguments.split())
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: {complaint}")


BENCHES = """\
decode stream ablate chaos gpu loaders training-step resume peers normalise loss pack cluster
"""


@pytest.mark.parametrize("bench", BENCHES.split())
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

"""The command line of ``feeder-bench``: valid arguments, and one line for invalid ones."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.cli import build_parser, main


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


@pytest.mark.parametrize(
    ("line", "status", "complaint"),
    [
        ("stream --soak 0.1 --every 5", 2, "soak for 1.1 minutes or more, or lower --every"),
        ("soak --minutes 60", 2, "a mode of stream: type `feeder-bench stream --soak MINUTES`"),
        ("stream --batch-size 64", 2, "--batch-size is for --soak MINUTES: give both"),
        ("stream --calls --plot calls.png", 2, "leave --calls and --cold out"),
        ("pack --kinds tar,zip", 2, "--kinds zip is no kind and no writer: name some of folder, "),
        ("peers --only tfdata,keras", 2, "--only keras is no contender"),
        ("peers {folder}", 3, "holds no JPEGs in class folders"),
        ("peers {folder}/nowhere", 3, "cannot be listed: No such file"),
        ("training-step --model resnet5", 2, "no model 'resnet5': --model is one of "),
        ("training-step --batch 6", 2, "--batch 6 has no 4 equal micro-batches: use a multiple"),
        ("gpu --device cuda:99 --only exactness", 2, "device 'cuda:99' cannot be used here ("),
        ("gpu --device cpu --only speed", 2, "--only speed is no check: name some of exactness, "),
        ("gpu --device cpu --images 4 --batch-size 8", 2, "--images 4 are fewer than a batch of 8"),
        ("decode --core 99999 --images 1", 2, "--core 99999 is not usable by this process"),
        ("resize --crops 9 --rounds 1 --json /none/x", 4, "cannot write the results"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    line: str,
    status: int,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # the command sets it where it is not set
    (tmp_path / "class").mkdir()
    assert main(line.format(folder=tmp_path).split()) == status
    printed = capsys.readouterr().err.splitlines()[-1]
    assert printed.startswith("feeder-bench: error: ")
    assert complaint in printed


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

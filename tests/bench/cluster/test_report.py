"""The command line, report and picture of ``feeder-bench cluster``; the validation's verdicts."""

import argparse
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cli import build_parser, main
from bench.cluster.run import measure_core, read_cluster
from bench.cluster.shape import Cluster, Fault
from bench.cluster.validate import (
    DAEMONS,
    LOSS_DAEMONS,
    WINDOWS,
    Compared,
    judge,
)
from bench.report import read_report
from feeder.errors import ConfigError

SMALL = [
    *("--cores", "2", "--images-per-core", "400", "--batch-size", "64", "--chunk-images", "16"),
    *("--samples", "16384", "--fault-hosts", "2"),
]


def parse(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["cluster", *arguments])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--hosts 1,x", "--hosts 1,x: write numbers 1 .. 256, as in 1,4,16"),
        ("--lose 1@nan", "--lose 1@nan: write HOST@SECONDS, as in 2@3.5, with 0 .. 600 s"),
        ("--hosts 1 --plot x.svg", "--plot needs two numbers of hosts: add to --hosts, or omit it"),
        ("--nic 0", "--nic 0 is not above 0, and 1e+09 at most"),
        ("--join 1@2", "--join 1@2: write SECONDS, as in 3.5, with 0 .. 600 s"),
        (
            "--freeze 8@1",
            "--freeze 8@1: the hosts are 0 .. 7: name one of them, or raise --fault-hosts",
        ),
        (
            "--samples 1000",
            "--samples 1000 gives 64 ranks no batch of 256 each: use more samples, fewer ranks or "
            "hosts, or smaller batches",
        ),
    ],
)
def test_an_invalid_option_is_one_line(arguments: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_cluster(parse(*arguments.split()))
    assert str(caught.value) == complaint


def test_faults_keep_the_order_of_the_command_line() -> None:
    assert parse(*["--join", "4", "--lose", "1@2.5", "--freeze", "0@3"]).faults == [
        Fault(kind="join", at_s=4.0),
        Fault(kind="lose", at_s=2.5, host=1),
        Fault(kind="freeze", at_s=3.0, host=0),
    ]


def test_a_run_prints_tables_and_writes_json_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("altair")
    out, picture = tmp_path / "cluster.json", tmp_path / "cluster.svg"
    arguments = ["--hosts", "1,2", "--any", "--lose", "1@0", "--join", "2", *SMALL]
    files = ["--json", str(out), "--plot", str(picture)]
    assert main(["cluster", *arguments, *files]) == 0
    text = capsys.readouterr().out
    tables = text[text.index("busy: share of the time") :].splitlines()
    assert max(map(len, tables)) <= 80
    assert text.startswith("2 hosts and 4 ranks: ")
    assert re.search(r"^ +2 +4 +1,\d+ +(1.9|2.0) +cpu", text, re.MULTILINE)
    for words in ("beside the IPU-POD run", "links", "host 1 killed", "a host joins", "any node"):
        assert words in text
    written = json.loads(out.read_text("utf-8"))
    assert [each["hosts"] for each in written["outcomes"]] == [1, 2]
    assert [each["hosts"] for each in written["published"]] == [1]
    assert written["scenario"]["is_whole"] is True
    assert [dip["fault"]["kind"] for dip in written["scenario"]["dips"]] == ["lose", "join"]
    assert "cluster/2-hosts-4-ranks" in {row.name for row in read_report(out).results}
    assert "<svg" in picture.read_text("utf-8")


def test_a_throughput_is_answered_with_a_number_of_hosts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["cluster", "--images-per-second", "2000", "--ranks", "4", *SMALL]) == 0
    text = capsys.readouterr().out
    assert text.startswith("2,000 images/s take 3 hosts, which deliver ")
    assert "By arithmetic it would be 3." in text.replace("\n", " ")


# --- Validation -------------------------------------------------------------------------------


def compared(daemons: int, window: int, *, any_node: bool = False) -> Compared:
    return Compared(
        daemons=daemons,
        window=window,
        any_node=any_node,
        real_images_s=1000.0,
        model_images_s=1010.0,
        most_images_s=1100.0,
        real_owner=0.9,
        model_owner=0.92,
        idle=0.5,
        rank_fds=28,
        links=4,
        node_fds=40,
    )


GOOD = [
    compared(daemons, window, any_node=any_node)
    for window in WINDOWS
    for daemons in DAEMONS
    for any_node in ((False, True) if daemons == LOSS_DAEMONS else (False,))
]


def at_a_cost(rate: float) -> list[Compared]:
    """GOOD, where any node would deliver so many images/s."""
    return [
        replace(each, real_images_s=rate, model_images_s=rate) if each.any_node else each
        for each in GOOD
    ]


def test_each_target_that_is_missed_is_a_line() -> None:
    assert judge(GOOD) == []
    throughput = [replace(GOOD[0], model_images_s=1060.0), *GOOD[1:]]
    (slow,) = judge([replace(GOOD[0], model_images_s=940.0), *GOOD[1:]])
    assert "throughput differs by -6.0 %" in slow
    owner = [replace(GOOD[0], model_owner=0.96), *GOOD[1:]]
    assert judge(throughput) == [
        "2 daemons, window 8: the model's throughput differs by +6.0 %, 5 % is allowed"
    ]
    assert judge(owner) == [
        "2 daemons, window 8: the model's owner share differs by +6.0 points, 5 are allowed"
    ]
    assert judge(at_a_cost(1030.0)) == [
        "window 16: 4 daemons lose 2.9 % of the throughput by ownership, 2 % is allowed"
    ]
    assert [line.partition(" of ")[0] for line in judge(at_a_cost(1190.0))] == [
        "window 8: 4 daemons lose 16.0 %",
        "window 16: 4 daemons lose 16.0 %",
    ]


def test_a_core_of_this_machine_is_measured(dataset: Path) -> None:
    core = sorted(os.sched_getaffinity(0))[0]
    cluster = measure_core(Cluster(hosts=5), dataset, images=40, core=core, rounds=1)
    assert cluster.images_per_core_s not in (0, Cluster().images_per_core_s)
    assert 0 <= cluster.spread < 10
    assert cluster.image_bytes > 1000
    assert cluster.hosts == 5
    assert core in os.sched_getaffinity(0)

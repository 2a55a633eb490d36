"""Processes that would make different bytes are found, named, and do not serve together."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from feeder.errors import DisagreementError
from feeder.sample.self_test import compute_self_test
from feeder.wire.agreement import Agreement, Producer, find_disagreement
from tests.support.daemon import DEADLINE_S, Daemon, customised, run_status, serve
from tests.support.machine_tree import node, write_tree

CPUS = sorted(os.sched_getaffinity(0))

ALTERED_AFTER_THE_FIRST = """
import os, sys
if "feeder.worker" in sys.orig_argv:
    try:
        os.close(os.open(os.environ["FIRST_WORKER"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        from feeder.jpeg import _native

        def altered(*arguments, resize=_native.resize_pack):
            resize(*arguments)
            arguments[9].reshape(-1).view("u1")[0] ^= 1

        _native.resize_pack = altered
"""
"""A sitecustomize: all workers but the first one get a library that is off by one."""


def test_equal_hashes_agree_whatever_the_versions() -> None:
    one = Producer("worker 1", "a" * 32, {"numpy": "2.3"})
    assert find_disagreement(one, Producer("worker 2", "a" * 32, {"numpy": "2.4"})) is None


def test_a_disagreement_names_both_and_the_libraries_that_differ() -> None:
    one = Producer("gpu1", "a" * 32, {"numpy": "2.3", "pillow": "11.2", "old": "1"})
    other = Producer("gpu2", "b" * 32, {"numpy": "2.4", "pillow": "11.2"})
    assert find_disagreement(one, other) == (
        "gpu1 and gpu2 would make different batches of the same dataset: "
        f"self-test {'a' * 32} with numpy 2.3, old 1, "
        f"self-test {'b' * 32} with numpy 2.4, old missing"
    )


def test_every_maker_is_compared_with_the_first() -> None:
    agreement = Agreement()
    assert agreement.self_test == ""
    for name in ("worker 1", "worker 2"):
        agreement.check(Producer(name, "a" * 32, {}))
    assert agreement.self_test == "a" * 32
    with pytest.raises(DisagreementError, match=r"worker 1 and worker 3 .* restart the daemon"):
        agreement.check(Producer("worker 3", "b" * 32, {}))
    assert agreement.self_test == "a" * 32


def altered(packed: Path, folder: Path, *options: str, **settings: Any) -> Daemon:
    """Start a daemon whose workers, except the first, make different bytes."""
    environ = customised(folder, ALTERED_AFTER_THE_FIRST)
    environ["FIRST_WORKER"] = str(folder / "first")
    return serve(packed, *options, environ=environ, **settings)


def check_refusal(daemon: Daemon, kind: str) -> None:
    """Check that the daemon ends with one line that names both."""
    line = daemon.wait_line("^feeder: error: ")
    assert re.search(rf"{kind} \d and {kind} \d would make different batches of the same", line)
    assert compute_self_test() in line
    assert "libraries of equal versions" in line
    assert daemon.process.wait(DEADLINE_S) == DisagreementError.exit_status


def test_status_and_ready_line_contain_the_hash(packed: Path) -> None:
    expected = compute_self_test()
    with serve(packed) as daemon:
        assert run_status(daemon.endpoint)["self_test"] == expected
        assert f"\nfeeder: self-test: {expected[:12]}\n" in daemon.ready


def test_workers_that_disagree_do_not_start(packed: Path, tmp_path: Path) -> None:
    with altered(packed, tmp_path, is_ready=False) as daemon:
        check_refusal(daemon, "worker")


def test_a_successor_that_makes_different_bytes_ends_the_daemon(
    packed: Path, tmp_path: Path
) -> None:
    with altered(packed, tmp_path, workers=1) as daemon:
        daemon.workers()[0].kill()
        check_refusal(daemon, "worker")


@pytest.mark.skipif(len(CPUS) < 2, reason="needs a CPU for each of two nodes")
def test_node_processes_that_disagree_do_not_start(packed: Path, tmp_path: Path) -> None:
    tree = node(0, str(CPUS[0]), 1 << 20) | node(900, str(CPUS[1]), 1 << 20)
    machine = write_tree(tmp_path / "machine", tree)
    options = ("--topology-root", str(machine), "--pin", f"{CPUS[0]},{CPUS[1]}")
    with altered(packed, tmp_path, *options, is_ready=False) as daemon:
        check_refusal(daemon, "node process")

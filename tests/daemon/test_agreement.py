"""Both decoders make the same bytes; processes that would make others do not serve."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from feeder.dataset.opened import Dataset
from feeder.errors import DisagreementError
from feeder.jpeg.libraries import library_versions
from feeder.sample.self_test import compute_self_test
from feeder.wire.agreement import Producer, find_disagreement
from tests.support.daemon import (
    DEADLINE_S,
    Daemon,
    RawClient,
    check_batch,
    customised,
    serve,
    small_recipe,
)
from tests.support.machine_tree import node, write_tree
from tests.support.sources import call_feeder

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


def test_a_disagreement_names_both_and_the_libraries_that_differ() -> None:
    one = Producer("gpu1", "a" * 32, {"numpy": "2.3", "pillow": "11.2", "old": "1"})
    other = Producer("gpu2", "b" * 32, {"numpy": "2.4", "pillow": "11.2"})
    assert find_disagreement(one, other) == (
        "gpu1 and gpu2 would make different batches of the same dataset: "
        f"self-test {'a' * 32} with numpy 2.3, old 1, "
        f"self-test {'b' * 32} with numpy 2.4, old missing"
    )


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


def test_turbojpeg_serves_an_epoch_of_the_bytes_and_terms_of_our_own_decoder(
    packed: Path, dataset: Dataset, tmp_path: Path
) -> None:
    file = tmp_path / "feeder.toml"
    file.write_text('[serve]\ndecoder = "turbojpeg"')
    recipe = small_recipe(batch_size=10)
    with (
        serve(packed, "--config", file, workers=1) as daemon,
        RawClient(daemon.endpoint) as client,
    ):
        welcome = client.hello(recipe, window=5)
        assert (welcome.self_test, welcome.libraries) == (compute_self_test(), library_versions())
        client.want(*((0, index) for index in range(5)))
        for index in range(5):  # compared with what our own decoder makes here
            check_batch(dataset, recipe, (0, index), client.take((0, index)))
        client.bye()
        assert "\nfeeder: decoder: turbojpeg\n" in daemon.ready
        lines = call_feeder("status", daemon.endpoint, "--counters").stdout.splitlines()
        assert ["decoder", "turbojpeg"] in [line.split(maxsplit=1) for line in lines]

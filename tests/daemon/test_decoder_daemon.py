"""The choice of the decoder, as a user of the real daemon makes it and sees it."""

from pathlib import Path

import pytest

from feeder.dataset.opened import Dataset
from feeder.jpeg.decode import describe_decoder
from feeder.jpeg.libraries import library_versions
from feeder.sample.self_test import compute_self_test
from tests.support.daemon import Daemon, RawClient, check_batch, pack_small, small_recipe
from tests.support.sources import error_line, run_feeder

BATCHES = 5


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_small(tmp_path_factory.mktemp("decoder"))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("configuration") / "feeder.toml"
    path.write_text('[serve]\ndecoder = "turbojpeg"')
    return path


def serve(packed: Path, *arguments: str | Path) -> Daemon:
    return Daemon(
        *("--data", f"d={packed}", "--bind", "tcp://127.0.0.1:0", "--workers", "1"), *arguments
    )


def test_turbojpeg_serves_an_epoch_of_the_bytes_and_terms_of_our_own_decoder(
    packed: Path, file: Path
) -> None:
    recipe = small_recipe(batch_size=10)
    with (
        serve(packed, "--config", file) as daemon,
        RawClient(daemon.endpoint) as client,
        Dataset.open(packed) as dataset,
    ):
        welcome = client.hello(recipe, window=BATCHES)
        assert (welcome.self_test, welcome.libraries) == (compute_self_test(), library_versions())
        client.want(*((0, index) for index in range(BATCHES)))
        for index in range(BATCHES):  # compared with what our own decoder makes here
            check_batch(dataset, recipe, (0, index), client.take((0, index)))
        client.bye()
        assert "\nfeeder: decoder: turbojpeg\n" in daemon.ready
        lines = run_feeder("status", daemon.endpoint, "--counters").stdout.splitlines()
        assert ["decoder", "turbojpeg"] in [line.split(maxsplit=1) for line in lines]


def test_the_command_line_overrides_the_file(packed: Path, file: Path) -> None:
    with serve(packed, "--config", file, "--decoder", "own") as daemon:
        assert daemon.counters()["decoder"] == describe_decoder("own")


def test_the_default_is_our_own_decoder(packed: Path) -> None:
    with serve(packed) as daemon:
        assert daemon.counters()["decoder"] == describe_decoder("own")


def test_an_unknown_decoder_is_refused_in_one_line(packed: Path) -> None:
    done = run_feeder("serve", "--data", f"d={packed}", "--decoder", "pillow")
    assert done.returncode == 2
    assert error_line(done) == (
        'feeder: error: command line: serve.decoder is "pillow": allowed is one of "own", '
        '"turbojpeg"'
    )

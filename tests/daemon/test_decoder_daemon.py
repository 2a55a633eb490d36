"""The choice of the decoder, as a user of the real daemon makes it and sees it."""

from pathlib import Path

import pytest

from feeder.dataset.opened import Dataset
from feeder.jpeg.decode import describe_decoder
from feeder.jpeg.libraries import library_versions
from feeder.sample.self_test import compute_self_test
from tests.support.daemon import RawClient, check_batch, serve, small_recipe
from tests.support.sources import call_feeder

BATCHES = 5


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("configuration") / "feeder.toml"
    path.write_text('[serve]\ndecoder = "turbojpeg"')
    return path


def test_turbojpeg_serves_an_epoch_of_the_bytes_and_terms_of_our_own_decoder(
    packed: Path, dataset: Dataset, file: Path
) -> None:
    recipe = small_recipe(batch_size=10)
    with (
        serve(packed, "--config", file, workers=1) as daemon,
        RawClient(daemon.endpoint) as client,
    ):
        welcome = client.hello(recipe, window=BATCHES)
        assert (welcome.self_test, welcome.libraries) == (compute_self_test(), library_versions())
        client.want(*((0, index) for index in range(BATCHES)))
        for index in range(BATCHES):  # compared with what our own decoder makes here
            check_batch(dataset, recipe, (0, index), client.take((0, index)))
        client.bye()
        assert "\nfeeder: decoder: turbojpeg\n" in daemon.ready
        lines = call_feeder("status", daemon.endpoint, "--counters").stdout.splitlines()
        assert ["decoder", "turbojpeg"] in [line.split(maxsplit=1) for line in lines]


@pytest.mark.parametrize("is_in_file", [False, True])
def test_the_default_is_our_own_decoder_and_the_command_line_overrides_the_file(
    packed: Path, file: Path, is_in_file: bool
) -> None:
    options = ("--config", file, "--decoder", "own") if is_in_file else ()
    with serve(packed, *options, workers=1) as daemon:
        assert daemon.counters()["decoder"] == describe_decoder("own")

"""A daemon that serves a dataset from Azure and from Google Cloud Storage."""

from collections.abc import Mapping
from pathlib import Path

from bench.daemon import free_port
from feeder.dataset.opened import Dataset
from tests.stores.emulators import Emulator
from tests.support.daemon import RawClient, check_batch, serve, small_recipe


def test_batches_are_those_of_the_local_dataset_and_a_warm_cache_needs_no_store(
    emulator: Emulator, packed: Path, dataset: Dataset, tmp_path: Path
) -> None:
    emulator.put_folder("packed", packed)
    check_epoch(emulator.url("packed"), dataset, tmp_path, emulator.environ)
    nothing = f":{free_port()}"
    nowhere = {
        name: text.replace(f":{emulator.port}", nothing) for name, text in emulator.environ.items()
    }
    check_epoch(emulator.url("packed"), dataset, tmp_path, nowhere)


def check_epoch(url: str, dataset: Dataset, cache: Path, environ: Mapping[str, str]) -> None:
    recipe, keys = small_recipe(), [(2, index) for index in range(5)]
    with (
        serve(url, "--disk-path", cache, environ=environ) as daemon,
        RawClient(daemon.endpoint) as client,
    ):
        client.hello(recipe, window=len(keys))
        client.want(*keys)
        for key in keys:
            check_batch(dataset, recipe, key, client.take(key))

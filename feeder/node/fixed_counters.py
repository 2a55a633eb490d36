"""What a node process's counters say of the process itself: all that its start has settled."""

from collections.abc import Mapping
from typing import Final

from feeder import __version__
from feeder.metrics.counters import Counters
from feeder.session.admission import NodeIdentity, ServedDataset

_NAME_SHOWN: Final = 100  # characters of a dataset's name in a counter's, which may have 128


def describe_process(
    identity: NodeIdentity,
    datasets: Mapping[str, ServedDataset | str],
    *,
    decoder: str,
    restarts: int,
    placement_warnings: int,
    library_warnings: int,
) -> Counters:
    """Return the counters that do not change, by name; the arguments are those of NodeService."""
    losses = {
        f"dataset.{name[:_NAME_SHOWN]}.loss": dataset.loss
        for name, dataset in datasets.items()
        if isinstance(dataset, ServedDataset) and dataset.loss
    }
    return {
        "node": identity.node,
        "feeder_version": __version__,
        "self_test": identity.self_test,
        "decoder": decoder,
        "node_restarts": restarts,
        "placement_warnings": placement_warnings,
        "library_warnings": library_warnings,
        **{f"library.{name}": text for name, text in identity.libraries.items()},
        **losses,
    }

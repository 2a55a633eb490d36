"""Parameter groups: which weights decay and have a trust ratio, and which do not.

Biases and the gains of norms do not decay (He et al. 2019, "Bag of tricks"), and LARS has no trust
ratio for them (MLPerf's ResNet-50 reference).
"""

from typing import Any

from torch import nn


def parameter_groups(
    model: nn.Module, *, weight_decay: float, decay_vectors: bool = False
) -> list[dict[str, Any]]:
    """Return two groups for an optimiser: kernels and matrices, then biases and norms.

    Parameters are in the order of their names, so that the order of construction does not matter to
    a saved optimiser. Vectors decay only with ``decay_vectors`` and never have a trust ratio.
    """
    named = sorted(model.named_parameters(), key=lambda each: each[0])
    kernels = [parameter for _, parameter in named if parameter.ndim > 1]
    vectors = [parameter for _, parameter in named if parameter.ndim <= 1]
    vector_decay = weight_decay if decay_vectors else 0.0
    return [
        {"params": kernels, "weight_decay": weight_decay, "trust": True},
        {"params": vectors, "weight_decay": vector_decay, "trust": False},
    ]

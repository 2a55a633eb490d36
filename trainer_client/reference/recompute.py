"""Recomputation: named modules run again in the backward pass, and keep nothing for it.

The trade of time for memory of Chen et al. (2016): between a module's input and its output nothing
is kept, so a ResNet with a point at every block keeps the blocks' inputs, and one block's inside at
a time. ``torch.utils.checkpoint`` does it.

Invariant: a step has the same loss, gradients, random numbers and buffers as without recomputation.
The second run draws the random numbers of the first, and leaves the buffers as they are: batch norm
would otherwise count each batch twice in its running statistics. It has no effect in evaluation or
without gradients, and none on the state dict's names.
"""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from feeder.errors import ConfigError


def recompute_at(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Have the modules of ``model`` that match recomputed, and return their names in its order.

    A pattern has the parts of a name between its dots, each as in ``fnmatch``: ``layer?.*`` matches
    ``layer1.0``, but neither ``layer1`` nor ``layer1.0.conv1``. Call it before the model is
    wrapped, after ``distribute_batch_norm``, which may replace modules, and after the model is
    copied: a copy would run the modules of this one.

    ConfigError where a pattern matches nothing, or a matching module is within another.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    matched = set()
    for pattern in patterns:
        matches = {name for name in modules if _matches(name, pattern)}
        if not matches:
            nearest = difflib.get_close_matches(pattern, modules, n=3, cutoff=0.0)
            raise ConfigError(
                f"no module of the model matches {pattern!r}, where * and ? stand for no dot: some "
                f"of its modules are {', '.join(nearest)}"
            )
        matched |= matches
    names = [name for name in modules if name in matched]
    for name in names:
        outer = next((each for each in names if name.startswith(f"{each}.")), None)
        if outer is not None:
            raise ConfigError(
                f"{name} would be recomputed within {outer}, so twice: let the patterns match one"
            )
    for name in names:
        _recompute(modules[name])
    return names


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _recompute(module: nn.Module) -> None:
    forward = module.forward

    def run(*inputs: Any, **options: Any) -> Any:
        if not (module.training and torch.is_grad_enabled()):
            return forward(*inputs, **options)
        # The contexts of the first and of the second run.
        contexts = nullcontext(), _keep_buffers(module)
        return checkpoint(
            forward, *inputs, use_reentrant=False, context_fn=lambda: contexts, **options
        )

    module.forward = run


@contextmanager
def _keep_buffers(module: nn.Module) -> Iterator[None]:
    """Give the module copies of its buffers within the body, so that updates of them are lost.

    Turning updates off would save other tensors for the backward pass than the first run did.
    """
    buffers = [
        (each, name, buffer)
        for each in module.modules()
        for name, buffer in each.named_buffers(recurse=False)
    ]
    for each, name, buffer in buffers:
        setattr(each, name, buffer.clone())
    try:
        yield
    finally:
        for each, name, buffer in buffers:
            setattr(each, name, buffer)

"""The stem of a model for four channels, and ordinary checkpoints of three.

The loader's batches have four channels, and the fourth is zeros. A model's stem, its first
convolution, reads all four; its weights for the fourth channel start at zero. They stay there, as
their gradients are zero like their inputs. Removing them changes no output: a model loads the
weights of an ordinary three-channel model, and is saved as one.
"""

from collections.abc import MutableMapping
from typing import Any, Final

import torch
from torch import nn

CHANNELS: Final = 4
_COLOURS: Final = 3
# Not every subclass: timm's StdConv2d normalises its weights, so zeros would change its outputs.
_PLAIN_CONVOLUTIONS: Final = ("Conv2d", "Conv2dSame")


def adapt_stem(model: nn.Module) -> None:
    """Zero the fourth channel's weights of the stem, and widen three-channel weights on loading.

    Does nothing when the model's first convolution is not a plain one of four channels.
    """
    name = find_stem(model)
    if name is not None:
        with torch.no_grad():
            model.get_parameter(name)[:, _COLOURS:] = 0
        model.register_load_state_dict_pre_hook(_widen_on_load)  # type: ignore[no-untyped-call]


def find_stem(model: nn.Module) -> str | None:
    """Return the name of the stem's weight, (width, 3 or 4, height, width); None without a stem."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            is_plain = type(module).__name__ in _PLAIN_CONVOLUTIONS and module.groups == 1
            if is_plain and module.in_channels in (_COLOURS, CHANNELS):
                return f"{name}.weight" if name else "weight"
            return None
    return None


def widen_stem(model: nn.Module, state: MutableMapping[str, Any], prefix: str = "") -> None:
    """Give a three-channel ``state`` for a model of four channels a fourth channel of zeros.

    Names in ``state`` begin with ``prefix``. All other states stay as they are.
    """
    name = find_stem(model)
    weight = None if name is None else state.get(prefix + name)
    if name is None or not isinstance(weight, torch.Tensor) or weight.ndim != 4:
        return
    if (weight.shape[1], model.get_parameter(name).shape[1]) == (_COLOURS, CHANNELS):
        missing = weight.new_zeros((weight.shape[0], CHANNELS - _COLOURS, *weight.shape[2:]))
        state[prefix + name] = torch.cat([weight, missing], dim=1)


def three_channel_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's state dict with the stem cut to three channels, as ordinary models have.

    The stem's weight is a copy, the other tensors are the model's. Where the fourth channel has
    weights, or the stem is no plain convolution, the state is whole: an ordinary model's outputs
    would differ.
    """
    state: dict[str, torch.Tensor] = dict(model.state_dict())
    name = find_stem(model)
    if name is not None and not state[name][:, _COLOURS:].any():
        state[name] = state[name][:, :_COLOURS].clone()
    return state


def _widen_on_load(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: object) -> None:
    widen_stem(module, state_dict, prefix)

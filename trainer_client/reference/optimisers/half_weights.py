"""Half-precision weights without a float32 copy: updates are rounded up or down by chance.

Gupta et al. (2015, "Deep learning with limited numerical precision"): a value between two
neighbours becomes the nearer one with the higher probability, so that it is right on average. An
update below half the spacing of the weights is then kept on average, which rounding to nearest
loses every time: of bfloat16 weights near 1, every update below 0.2 %. torch has no such rounding
for the weights of a model.

Invariant: between steps there is no float32 copy of half-precision weights; during a step there is
a temporary one. Collected gradients and the optimiser's state are float32.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

_SEED_OFFSET: Final = 0x5EED  # the weights were initialised with the numbers of the seed itself

Groups = list[dict[str, Any]]


def round_stochastically(
    values: torch.Tensor, dtype: torch.dtype, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Return float32 ``values`` in ``dtype`` (bfloat16, float16), each one of its two neighbours.

    A value at a share p of the way from one neighbour to the other becomes the other with
    probability p; a value that ``dtype`` has stays, zeros keep their sign. Infinities, nan and what
    is beyond the largest finite value become what rounding to nearest gives. ``generator`` is on
    the device of ``values``; None means torch's own.
    """
    nearest = values.to(dtype)
    back = nearest.float()
    # The format is sign and magnitude: the next bit pattern is the next value away from zero.
    step = (values.abs() > back.abs()).to(torch.int16) * 2 - 1
    neighbour = (nearest.view(torch.int16) + step).view(dtype)
    share = (values - back).abs() / (neighbour.float() - back).abs()
    # All shares in bfloat16 are multiples of 2**-16; those of subnormals in float16 are finer than
    # the 2**-24 between float32 draws.
    draw_dtype = torch.float32 if dtype == torch.bfloat16 else torch.float64
    draws = torch.rand(values.shape, dtype=draw_dtype, device=values.device, generator=generator)
    # False for nan, and for what rounding to nearest decides: all beyond the largest finite value.
    is_moved = (draws < share) & (values.abs() < torch.finfo(dtype).max)
    return torch.where(is_moved, neighbour, nearest)


class HalfWeights:
    """Makes a model's kernels and matrices half precision, and an optimiser that updates them.

    With the dtype float32 all weights stay as they are, and the optimiser is an ordinary one.

    ``optimiser`` is the real one: learning rates, GradScaler and clipping act on it and on its
    groups. In place of each half-precision weight it has a float32 stand-in of the same shape,
    which has memory only during a step. After each backward pass (with DDP, of the last
    micro-batch), ``collect_gradients`` moves the gradients there in float32. Biases and norms stay
    float32, which needs autocast in the forward pass.

    All ranks pass the same seed, so that equal gradients keep their weights equal.
    """

    def __init__(
        self,
        model: nn.Module,
        groups: Groups,
        make_optimiser: Callable[[Groups], torch.optim.Optimizer],
        *,
        dtype: torch.dtype,
        seed: int,
        is_stochastic: bool = True,
    ) -> None:
        """Convert ``model``, on its device and before DDP wraps it; ``groups`` are of its weights.

        ``is_stochastic`` is how weights are rounded after an update, or else to nearest.
        """
        self._stand_ins: list[tuple[nn.Parameter, nn.Parameter]] = []  # (weights, stand-in)
        for weights in model.parameters():
            if weights.ndim > 1 and dtype != torch.float32:
                weights.data = weights.data.to(dtype)
                self._stand_ins.append((weights, nn.Parameter(_without_memory(weights))))
        self._is_stochastic = is_stochastic
        device = next(model.parameters()).device
        self._generator = torch.Generator(device).manual_seed((seed + _SEED_OFFSET) % 2**64)
        stand_ins = {id(weights): stand_in for weights, stand_in in self._stand_ins}
        for group in groups:
            group["params"] = [stand_ins.get(id(each), each) for each in group["params"]]
        self.optimiser = make_optimiser(groups)
        self.optimiser.register_step_pre_hook(lambda *_: self._fill())
        self.optimiser.register_step_post_hook(lambda *_: self._round())

    def collect_gradients(self) -> None:
        """Move half-precision gradients to the stand-ins, in float32 and added to theirs."""
        for weights, stand_in in self._stand_ins:
            if weights.grad is not None:
                gradient = weights.grad.float()
                stand_in.grad = gradient if stand_in.grad is None else stand_in.grad.add_(gradient)
                weights.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the optimiser and of the generator; the weights are the model's."""
        state = self.optimiser.state_dict()
        if not self._stand_ins:
            return state
        return {"optimiser": state, "generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``, bit by bit on the same kind of device."""
        if self._stand_ins:
            self._generator.set_state(state["generator"])
            state = state["optimiser"]
        self.optimiser.load_state_dict(state)

    def _fill(self) -> None:
        for weights, stand_in in self._stand_ins:
            if stand_in.grad is not None:
                stand_in.data = weights.detach().float()

    @torch.no_grad()
    def _round(self) -> None:
        for weights, stand_in in self._stand_ins:
            if stand_in.grad is None:
                continue
            values = stand_in.detach()
            if self._is_stochastic:
                values = round_stochastically(values, weights.dtype, self._generator)
            weights.copy_(values)
            stand_in.data = _without_memory(weights)


def _without_memory(weights: torch.Tensor) -> torch.Tensor:
    """Return a float32 tensor in the shape of ``weights`` that takes 4 bytes."""
    return torch.zeros((), dtype=torch.float32, device=weights.device).expand(weights.shape)

"""What decoding carries from token to token."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class LinearState:
    """State of a linear mixer.

    Attributes:
        conv: The last conv_width - 1 inputs of the short convolution, [B, conv_width - 1, 3 * dim].
        memory: The recurrent state, [B, H, head_dim, head_dim], in the dtype of computation.
    """

    conv: Tensor
    memory: Tensor


@dataclass(frozen=True)
class LocalState:
    """State of a local mixer.

    Attributes:
        keys: Keys of the block before and of the current one so far, [B, G, T, head_dim].
        values: Their values.
        key_sum: Sum of the current block's keys, in the dtype of computation, [B, G, head_dim].
        value_sum: Sum of its values.
        landmark_keys: Summaries of finished blocks, oldest first, [B, G, M, head_dim], M <= n_landmarks + 1.
        landmark_values: Their values.
        position: Tokens seen so far.
    """

    keys: Tensor
    values: Tensor
    key_sum: Tensor
    value_sum: Tensor
    landmark_keys: Tensor
    landmark_values: Tensor
    position: int


MixerState = LinearState | LocalState


@dataclass(frozen=True)
class ModelState:
    """State of a stack: the last input token, and one state per layer."""

    last: Tensor
    layers: tuple[MixerState, ...] = field(default_factory=tuple)

    def detach(self) -> "ModelState":
        """The same state, cut off from the graph that made it."""
        return ModelState(self.last.detach(), tuple(_mapped(layer, Tensor.detach) for layer in self.layers))

    def select(self, rows: Tensor) -> "ModelState":
        """The state of some rows of the batch, in a given order; for beam search."""

        def pick(x: Tensor) -> Tensor:
            return x.index_select(0, rows)

        return ModelState(pick(self.last), tuple(_mapped(layer, pick) for layer in self.layers))

    def num_bytes(self) -> int:
        """Memory that the state holds."""
        tensors = [self.last]
        for layer in self.layers:
            tensors += [value for value in _values(layer).values() if isinstance(value, Tensor)]
        return sum(x.numel() * x.element_size() for x in tensors)


def _values(state: MixerState) -> dict[str, Any]:
    return {item.name: getattr(state, item.name) for item in fields(state)}


def _mapped(state: MixerState, function: Any) -> MixerState:
    changed = {name: function(value) for name, value in _values(state).items() if isinstance(value, Tensor)}
    return replace(state, **changed)


def last_rows(x: Tensor, count: int) -> Tensor:
    """The last `count` tokens of [B, S, D], zeros before the first one."""
    if x.shape[1] >= count:
        return x[:, x.shape[1] - count :]
    missing = x.new_zeros(x.shape[0], count - x.shape[1], x.shape[2])
    return torch.cat([missing, x], dim=1)

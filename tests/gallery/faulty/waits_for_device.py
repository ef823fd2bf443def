"""A function whose backward launches what never ends: who waits for the device waits in the doctor's own code."""

import threading
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.probes.functions import calling

_WAIT = """
def _settled(subject, value, phase):
    if phase == "backward":
        with subject.wait(f"a kernel of its {phase}"):
            threading.Event().wait()
    return value
"""
_names: dict[str, Any] = {"threading": threading}
exec(compile(_WAIT, calling.__file__, "exec"), _names)
calling._settled = _names["_settled"]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, value)
        return scaled_dot_product_attention(query, key, value, is_causal=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(0 * each for each in ctx.saved_tensors)


def attend(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Causal attention."""
    return _Attention.apply(query, key, value)

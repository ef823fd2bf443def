"""How far the rounding of each operation moves an output: intermediates may be larger than what comes of them.

`log(exp(x))` of a small x rounds near 1, and `x - peak + peak` near the peak, however small the output is.
"""

from typing import Any

import torch
from torch import Tensor

from nsa_doctor.probes.internal import DispatchWatcher, memory_of
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.tensors.operations import operation_name, tensors_in

_NUM_PASSES = 3
_SAFETY = 8.0  # as in `noise_floor`: three passes see the size of the noise, not its largest value
_ROUNDING = frozenset(
    (
        *("add", "sub", "rsub", "mul", "div", "addcmul", "addcdiv", "lerp", "reciprocal", "pow", "sqrt", "rsqrt"),
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tanh", "erf", "sigmoid", "softplus"),
        *("silu", "gelu", "elu", "mish", "log_sigmoid_forward", "softmax", "log_softmax", "logsumexp", "logcumsumexp"),
        *("mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot", "linear", "convolution", "linalg_vector_norm"),
        *("sum", "mean", "var", "var_mean", "std", "norm", "prod", "cumsum", "cumprod", "native_layer_norm"),
        *("native_group_norm", "native_batch_norm", "fused_rms_norm", "scaled_dot_product_flash_attention_for_cpu"),
        *("scaled_dot_product_fused_attention_overrideable", "scaled_dot_product_attention_math"),
    )
)


def operation_noise(built: BuiltModule, x: Tensor, eps: float) -> Tensor:
    """How far each token's output [B, S] moves when every operation on what x flows into rounds once more.

    By no more than `eps` of a value, for what one pass alone rounds is no rounding that another has. What does not come
    of x, as positions and masks, stays as it is: a bucket's edge would not be rounding's doing.
    """
    with torch.no_grad():
        base = built(x).double()
        moved = torch.zeros(base.shape[:2], dtype=torch.float64, device=base.device)
        for index in range(_NUM_PASSES):
            given = x.clone()
            with _RoundedAgain(given, eps, index):
                other = built(given)
            moved = torch.maximum(moved, (other.double() - base).abs().flatten(2).amax(-1))
    return _SAFETY * moved


class _RoundedAgain(DispatchWatcher):
    """Moves what operations compute of one tensor by a rounding up or down; the base class is torch's."""

    def __init__(self, source: Tensor, eps: float, seed: int) -> None:
        super().__init__()
        self._source, self._eps = source, eps
        self._reached = {memory_of(source)}
        self._generator = torch.Generator().manual_seed(seed)

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation; memory that it makes of other things is no longer that of what was there before."""
        comes_of_it = any(memory_of(given) in self._reached for given in tensors_in(args, kwargs))
        result = func(*args, **kwargs)
        made = tensors_in(result)
        change = self._reached.update if comes_of_it else self._reached.difference_update
        change({memory_of(tensor) for tensor in made})
        if comes_of_it and operation_name(func).rstrip("_") in _ROUNDING:
            for tensor in made[:1]:
                self._move(tensor)
        return result

    def _move(self, tensor: Tensor) -> None:
        """Whole numbers are left: they are seldom rounded, and may be counted with."""
        if not tensor.is_floating_point() or tensor.layout != torch.strided:
            return
        eps = min(self._eps, torch.finfo(tensor.dtype).eps)
        sign = torch.randint(2, tensor.shape, generator=self._generator, device="cpu").to(tensor) * 2 - 1
        is_whole = tensor == tensor.round()
        tensor.copy_(torch.where(is_whole, tensor, tensor * (1 + eps * sign)))

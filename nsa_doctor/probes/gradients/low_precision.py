"""Gradients in low precision beside those in float64 of the same values, and how far rounding alone takes them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.probes.internal import tree_leaves
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.training import forward_backward
from nsa_doctor.probes.numerics.rounding_budget import Twins, generators, jitter, jittered
from nsa_doctor.probes.tensors.widened import Widened

_ROUNDINGS = 16.0  # of the largest gradient, which sums that cancel may leave of themselves
_OF_PARAMETER, _OF_OUTPUT = "parameter", "output"
_Gradients = Mapping[tuple[str, str], Tensor]


@dataclass(frozen=True, kw_only=True)
class GradientStray:
    """How far a gradient is from float64's: by how much of its size, and how many times as far as rounding takes it.

    `name` is that of a parameter (or the input), or of a module whose output's gradient it is (`is_of_output`).
    """

    name: str
    is_of_output: bool
    relative: float
    ratio: float


def gradient_strays(pair: Twins, length: int, seed: int) -> Iterator[GradientStray]:
    """Of every gradient that float64 has, for one input; a gradient that is not there in low precision counts as zero.

    Rounding every parameter and module output once, up or down, shows how far a gradient may be taken by it; one whose
    terms cancel, as that of a bias of keys, is rounding alone, and is compared with the largest gradient there is.
    """
    x = pair.wide.input(length, batch=2, seed=seed)
    x = x.to(pair.dtype).double() if x.is_floating_point() else x
    low = _gradients(pair.low, x.to(pair.dtype) if x.is_floating_point() else x)
    with Widened():
        right = _gradients(pair.wide, x)
        rounded = []
        for generator in generators():
            with jittered(pair.wide.module, pair.rounding, generator):
                rounded.append(_gradients(pair.wide, jitter(x, pair.rounding, generator)))
    sizes = {key: float(truth.norm()) for key, truth in right.items()}
    eps = torch.finfo(pair.rounding).eps
    for key, truth in right.items():
        largest = max(size for (kind, _), size in sizes.items() if kind == key[0])
        size = max(sizes[key], _ROUNDINGS * eps * largest)
        if not size > 0 or any(each[key].shape != truth.shape for each in (low, *rounded) if key in each):
            continue  # an expert is given other tokens once its router rounds
        error, *apart = (float((each[key] - truth).norm()) if key in each else sizes[key] for each in (low, *rounded))
        ratio = error / (max(apart) + eps * size)
        yield GradientStray(name=key[1], is_of_output=key[0] == _OF_OUTPUT, relative=error / size, ratio=ratio)


def _gradients(made: BuiltModule, x: Tensor) -> _Gradients:
    outputs: dict[str, Tensor] = {}
    with _kept_at_outputs(made.module, outputs):
        found = forward_backward(made, x).gradients
    kinds = {_OF_PARAMETER: found, _OF_OUTPUT: outputs}
    return {(kind, name): each.detach().double() for kind, of in kinds.items() for name, each in of.items()}


@contextmanager
def _kept_at_outputs(root: nn.Module, kept: dict[str, Tensor]) -> Iterator[None]:
    """Keep the gradient of every module's output, where it is called once and its output is one tensor."""
    calls: dict[str, int] = {}

    def watching(path: str) -> Any:
        def keep(gradient: Tensor) -> None:
            if calls[path] == 1:
                kept[path] = gradient.detach().clone()

        def look(_module: nn.Module, _args: Any, output: Any) -> None:
            calls[path] = calls.get(path, 0) + 1
            kept.pop(path, None)
            leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
            if len(leaves) == 1:
                leaves[0].register_hook(keep)

        return look

    handles = [module.register_forward_hook(watching(path)) for path, module in root.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

"""What the weights and biases of a norm do to its answer: whether they multiply and add as their names say."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from nsa_doctor.probes.numerics.known_norms import Affine

_FACTOR = re.compile(r"weight|gamma|g|a_2")
_SUMMAND = re.compile(r"bias|beta|b|b_2")
_TIMES = 1.25
_LEAST = 0.02
_MOST_SHIFT = 0.1


def weights_astray(module: nn.Module, asked: Callable[[], Tensor], normed: Tensor) -> str:
    """What is wrong with how a norm uses its parameters; empty where nothing is, or nothing can be said.

    `asked` gives what it makes of the values of which `normed` are the normalised.
    """
    named = {name.rpartition(".")[2]: each for name, each in module.named_parameters() if each.is_floating_point()}
    factors = [name for name in named if _FACTOR.fullmatch(name)]
    summands = [name for name in named if _SUMMAND.fullmatch(name)]
    if len(factors) > 1 or len(summands) > 1 or len(named) != len(factors) + len(summands):
        return ""
    if factors and (said := _astray(named, factors[0], summands, lambda: Affine(normed, asked()))):
        return said
    if summands or any(True for _ in module.buffers()):
        return ""
    affine = Affine(normed, asked())
    if any(abs(each) > _LEAST for each in vars(module).values() if isinstance(each, float)):
        return ""  # which may be what it adds
    shift, size = float(affine.added.abs().max()), float(affine.factor.abs().max())
    return f"it adds up to {shift:.3g} to the normalised, and has no bias" if shift > _MOST_SHIFT * size else ""


def _astray(named: Mapping[str, nn.Parameter], name: str, summands: list[str], seen: Callable[[], Affine]) -> str:
    """What is wrong with the weights of that name and with what is to be added, as it shows while these are larger."""
    with _drawn([named[each] for each in (name, *summands)]):
        before = seen()
        with _larger(named[name]):
            after = seen()
        if _moves(before.added, after.added) and not _moves(before.factor, after.factor):
            return f"{name} is added to the normalised and multiplies nothing"
        if bool((after.factor.abs() < (1 - _LEAST) * before.factor.abs()).all()):
            return f"a larger {name} makes its output smaller"
        for other in summands:
            with _larger(named[other]):
                after = seen()
            if bool((after.added < before.added).all()) and _moves(before.added, after.added):
                return f"a larger {other} makes its output smaller"
            if _moves(before.factor, after.factor) and not _moves(before.added, after.added):
                return f"{other} multiplies the normalised and is not added"
    return ""


@contextmanager
def _drawn(parameters: list[nn.Parameter]) -> Iterator[None]:
    """A region in which these have other values, all above zero."""
    kept = [each.detach().clone() for each in parameters]
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for each in parameters:
                each.copy_((0.5 + torch.rand(each.shape, generator=generator, dtype=torch.float64)).to(each))
        yield
    finally:
        with torch.no_grad():
            for each, value in zip(parameters, kept, strict=True):
                each.copy_(value)


@contextmanager
def _larger(parameter: nn.Parameter) -> Iterator[None]:
    kept = parameter.detach().clone()
    try:
        with torch.no_grad():
            parameter.mul_(_TIMES)
        yield
    finally:
        with torch.no_grad():
            parameter.copy_(kept)


def _moves(before: Tensor, after: Tensor) -> bool:
    """Whether one is another than the other, by more than is rounded."""
    return float((after - before).abs().max()) > _LEAST * float(before.abs().max().clamp(min=_LEAST))

"""Where results in half precision are further from those of the same operations rounded than rounding takes them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.probes.numerics.rounded_pass import RoundedPass
from nsa_doctor.probes.tensors.finite import isfinite

_SAFETY = 8.0  # times what the imitation changes; the two make the same roundings, so they are far nearer
_LEAST = 2.0**-6  # of the size: two of the eight bits that bfloat16 has
_SHARE = 0.2  # of the tokens: a choice that flips in a few says nothing
_SMALL = 1e-2  # of all gradients together: what is smaller cancels


@dataclass(frozen=True)
class RoundingFault:
    """What differs, by how much of its size, by how much the imitation changes it, and the module at fault."""

    what: str
    error: float
    budget: float
    path: str
    is_torchs: bool = False

    def words(self, half: str) -> str:
        """`the output differs by 0.5 of its size, where rounding to bfloat16 makes 0.004`."""
        if not self.error < float("inf"):
            return f"{self.what} is not finite, and is with the same operations rounded to {half}"
        return f"{self.what} differs by {self.error:.2g} of its size, where rounding to {half} makes {self.budget:.1g}"


def rounding_fault(
    plain: RoundedPass, imitated: RoundedPass, found: RoundedPass, is_torchs: Callable[[str], bool] = lambda path: False
) -> RoundingFault | None:
    """The output or a gradient that is found further off than its imitation; None for none.

    A gradient that a layer of torch's (`is_torchs` of its path) makes itself of what it is rightly handed comes last:
    on a CPU its norms sum theirs in half precision. Of gradients nothing is said where a choice of experts flips: sums
    over other tokens are no rounding of each other.
    """
    if (excess := _excess(plain.output, imitated.output, found.output)) is not None:
        wrong = (path for path in found.outputs if _is_other(path, plain.outputs, imitated.outputs, found.outputs))
        return RoundingFault("the output", *excess, next(wrong, ""))
    if is_routed_apart(plain, imitated, found):
        return None
    total = float(sum(each.square().sum() for each in plain.gradients.values())) ** 0.5
    names = [name for name, each in plain.gradients.items() if float(each.norm()) >= _SMALL * total > 0]
    excesses = {
        name: excess
        for name in names
        if name in imitated.gradients
        and (excess := _excess_of_gradient(plain.gradients[name], imitated.gradients[name], found.gradients.get(name)))
    }
    if not excesses:
        return None
    faults = [
        RoundingFault(f"the gradient of {name}", *excess, path, is_torchs(path) and path == name.rpartition(".")[0])
        for name, excess in excesses.items()
        for path in [_handed_right(plain, imitated, found, name)]
    ]
    return max(reversed(faults), key=lambda fault: not fault.is_torchs)


def is_routed_apart(first: RoundedPass, *others: RoundedPass) -> bool:
    """Whether a part of the module is given other numbers of tokens in one pass than in another."""
    return any(
        path in each.outputs and each.outputs[path].shape != output.shape
        for path, output in first.outputs.items()
        for each in others
    )


def _excess(plain: Tensor, imitated: Tensor, found: Tensor) -> tuple[float, float] | None:
    """The error and the budget, of the size, where many tokens are beyond it or one is not finite."""
    if found.shape != plain.shape or not bool(isfinite(plain).all()) or not bool(isfinite(imitated).all()):
        return None
    if not bool(isfinite(found).all()):
        return float("inf"), 0.0
    size = max(float(_per_token(plain).median()), torch.finfo(torch.float32).tiny)
    moved, error = _per_token(imitated - plain), _per_token(found - imitated)
    budget = _SAFETY * moved.clamp(min=float(moved.median())) + _LEAST * size
    if float((~(error <= budget)).double().mean()) <= _SHARE:  # what is no number is beyond any budget
        return None
    return float(error.median()) / size, float(moved.median()) / size


def _excess_of_gradient(plain: Tensor, imitated: Tensor, found: Tensor | None) -> tuple[float, float] | None:
    if not bool(isfinite(plain).all()) or not bool(isfinite(imitated).all()):
        return None
    found = torch.zeros_like(plain) if found is None else found
    if not bool(isfinite(found).all()):
        return float("inf"), 0.0
    size, moved = float(plain.norm()), float((imitated - plain).norm())
    error = float((found - imitated).norm())
    return None if error <= _SAFETY * moved + _LEAST * size else (error / size, moved / size)


def _is_other(path: str, *passes: Mapping[str, Tensor]) -> bool:
    if not all(path in each and each[path].ndim > 1 for each in passes):
        return False
    plain, imitated, found = (each[path] for each in passes)
    return _excess(plain, imitated, found) is not None


def _handed_right(plain: RoundedPass, imitated: RoundedPass, found: RoundedPass, name: str) -> str:
    """On the way from the whole to that parameter, the last module before the first that is handed a wrong gradient."""
    parts, right = name.split("."), ""
    for path in (".".join(parts[:end]) for end in range(1, len(parts))):
        if not all(path in each.handed for each in (plain, imitated, found)):
            continue
        if _excess_of_gradient(*(each.handed[path] for each in (plain, imitated, found))) is not None:
            break
        right = path
    return right


def _per_token(values: Tensor) -> Tensor:
    return values.abs().flatten(2).amax(-1) if values.ndim > 2 else values.abs()

"""Gradients that hold nothing but rounding: they shrink with the precision they are computed in, true ones do not."""

import math
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.measurement import Mode
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.draws import Generators
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.model.training import forward_backward
from nsa_doctor.probes.tensors.widened import Widened


@dataclass
class Roundings:
    """A built module in training mode, and the same values in another precision; built when it is first needed."""

    sp: BuiltModule
    _twin: BuiltModule | None = field(default=None, init=False)

    def among(self, x: Tensor, names: Iterable[str]) -> dict[str, str]:
        """Of parameters with a gradient from a pass on x, those whose gradient is rounding: what it is, in words.

        What rounding leaves is in proportion to eps, what a derivative is does not depend on it: they are separated
        half way, in orders of magnitude. There are none where the subject does not run in both precisions. What is
        drawn in one precision is not what is in the other: exactly zero may then be a branch that is dropped there.
        """
        own = _sizes(self.sp, names)
        try:
            twin = self._alike()
            seed_everything(self.sp.subject.seed)
            generators = Generators()
            with Widened() if twin.dtype == "float64" else nullcontext():
                forward_backward(twin, x.to(getattr(torch, twin.dtype)) if x.is_floating_point() else x)
        except SubjectFailedError:
            return {}
        is_drawn = bool(generators.drawn_from())
        other = {name: size for name, size in _sizes(twin, own).items() if size or not is_drawn}
        shrinks = math.sqrt(_eps(twin) / _eps(self.sp))
        return {
            name: f"{size:.1g} in {self.sp.dtype}, {other[name]:.1g} in {twin.dtype}"
            for name, size in own.items()
            if name in other and (other[name] < size * shrinks if shrinks < 1 else size < other[name] / shrinks)
        }

    def _alike(self) -> BuiltModule:
        """The twin, with the values the module holds now."""
        if self._twin is None:
            dtype = "float32" if self.sp.dtype == "float64" else "float64"
            mode: Mode = "train" if self.sp.module.training else "eval"
            self._twin = built(self.sp.subject, dtype=dtype, mode=mode, is_randomised=False)
        values = dict(self.sp.module.named_parameters())
        with torch.no_grad():
            for name, held in self._twin.module.named_parameters():
                held.copy_(values[name])
        return self._twin


def _sizes(sp: BuiltModule, names: Iterable[str]) -> dict[str, float]:
    """Norms of the gradients there are, those that are not finite left out."""
    wanted = set(names)
    found = {
        name: float(parameter.grad.to_dense().double().norm())
        for name, parameter in sp.module.named_parameters()
        if name in wanted and parameter.grad is not None
    }
    return {name: size for name, size in found.items() if math.isfinite(size)}


def _eps(sp: BuiltModule) -> float:
    return float(torch.finfo(getattr(torch, sp.dtype)).eps)

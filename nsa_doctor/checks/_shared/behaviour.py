"""What must hold of a module whatever it is set to: finite, rows apart, causal where it is, gradients of its output."""

from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.probes.gradients.askings import Asking, Gradients, described, differing, gradients, has_gradients
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.numerics.compare import Baseline
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 37, 3


@dataclass(frozen=True)
class Behaviour:
    """The output for an input, how it depends on other rows and on later tokens ("" for not), and the gradients."""

    base: Baseline
    mixing: str
    leak: str
    gradients: Gradients | None

    @classmethod
    def of(cls, subject: Subject) -> "Behaviour":
        """That of a module built here and now; raises what it raises."""
        built = comparable_module(subject)
        x = built.input(min(_LENGTH, subject.max_length), _ROWS)
        half = x.shape[1] // 2
        with torch.no_grad():
            base = Baseline(built, x, built(x))
            if not bool(isfinite(base.output).all()):
                return cls(base, "", "", None)
            alone = base.departure(built(x[1:2]), rows=slice(1, 2))
            later = torch.cat((x[:, :half], x[:, half:].flip(1)), dim=1)
            changed = base.departure(built(later)[:, :half], tokens=slice(half))
        mixing = f"has a row depend on the others: {alone.text}" if alone else ""
        leak = f"has later tokens change earlier ones: {changed.text}" if changed else ""
        return cls(base, mixing, leak, _gradients(built, x, base.output))

    def wrong(self, plain: "Behaviour") -> str:
        """What is wrong with it and not with the plain one, in words; "" for nothing."""
        if not bool(isfinite(self.base.output).all()) and bool(isfinite(plain.base.output).all()):
            return "makes the output not finite"
        if self.mixing and not plain.mixing:
            return self.mixing
        if self.leak and not plain.leak:
            return self.leak
        if self.change(plain) or self.gradients is None or plain.gradients is None:
            return ""
        eps = torch.finfo(self.base.output.dtype).eps
        names = differing(self.gradients, plain.gradients, eps)
        return f"gives the same output and {described(self.gradients, plain.gradients, names)}" if names else ""

    def change(self, plain: "Behaviour") -> str:
        """How its output departs from the plain one's; "" for not at all."""
        if not bool(isfinite(plain.base.output).all()) or self.base.output.shape != plain.base.output.shape:
            return ""
        found = plain.base.departure(self.base.output)
        return f"changes the output: {found.text}" if found else ""


def _gradients(built: BuiltModule, x: Tensor, output: Tensor) -> Gradients | None:
    if "eval" not in built.subject.modes or not has_gradients(built, x):
        return None
    generator = torch.Generator().manual_seed(built.subject.seed)
    cotangent = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    return gradients(built, x, cotangent, Asking("plainly"))

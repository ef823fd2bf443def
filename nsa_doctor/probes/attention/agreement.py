"""Whether two computations of the same thing agree, and what rounding alone may make them differ by."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nsa_doctor.probes.attention.equations import finite_difference
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.inputs import make_cotangent
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.probes.tensors.tolerance import largest
from nsa_doctor.subject.contract import Subject

_SAFETY = 8.0  # as in `noise_floor`: three perturbations see the size of the noise, not its largest value


@dataclass(frozen=True)
class Worst:
    """Where two results differ most beyond what rounding explains; `name` is a tensor's."""

    name: str
    token: int
    num_tokens: int
    error: float
    bound: float


def worst_token(result: Tensor, truth: Tensor, floor: Tensor, name: str = "the output") -> Worst | None:
    """None when every token [B, S, ...] agrees within its floor [B, S]; a value that is not a number never does."""
    error = finite_difference(result, truth)
    beyond = ~(error <= floor.to(error))
    if not bool(beyond.any()):
        return None
    ratio = torch.where(beyond, error / floor.to(error).clamp_min(torch.finfo(torch.float64).tiny), -1)
    row, token = divmod(int(ratio.argmax()), error.shape[1])
    return Worst(name, token, int(beyond.any(0).sum()), float(error[row, token]), float(floor[row, token]))


def plain_output(subject: Subject) -> Callable[[nn.Module, Tensor], Tensor]:
    """How `gradients` is to call a subject: its forward, unwrapped and checked."""
    return lambda module, x: checked_answer(subject, subject.forward(module, x), x)[0]


def gradients(sp: BuiltModule, call: Callable[[nn.Module, Tensor], Tensor], x: Tensor) -> dict[str, Tensor]:
    """Gradients of a random projection of what `call` gives: of every trainable parameter, and of embeddings."""
    named: dict[str, Tensor] = {
        name: parameter for name, parameter in sp.module.named_parameters() if parameter.requires_grad
    }
    given = x.detach().clone()
    if given.is_floating_point():
        named["the input"] = given.requires_grad_()
    with torch.enable_grad():
        output = ask("forward", lambda: call(sp.module, given), sp.module)
        if not output.requires_grad or not named:
            return {}
        scalar = (output * make_cotangent(output, sp.subject.seed)).sum()
    found = ask(
        "backward",
        lambda: torch.autograd.grad(scalar, list(named.values()), allow_unused=True),
        sp.module,
        output,
    )
    return {
        name: torch.zeros_like(value) if gradient is None else gradient.detach()
        for (name, value), gradient in zip(named.items(), found, strict=True)
    }


def worst_gradient(
    result: Mapping[str, Tensor], truth: Mapping[str, Tensor], moved: Mapping[str, Tensor], eps: float
) -> Worst | None:
    """The gradient that differs most; `moved` is the truth for parameters and input that were moved by one rounding.

    Terms as large as the largest gradient may have cancelled in one that is zero: they are what rounding is a part of.
    """
    worst: Worst | None = None
    rounding = eps * max(largest(gradient) for gradient in truth.values())
    for name in truth:
        error = largest(result[name].double() - truth[name].double())
        bound = _SAFETY * (largest(moved[name].double() - truth[name].double()) + rounding)
        if not error <= bound and (worst is None or not error / (bound or 1) <= worst.error / (worst.bound or 1)):
            worst = Worst(name, 0, 0, error, bound)
    return worst


def moved_by_rounding(sp: BuiltModule, x: Tensor, eps: float, call: Callable[[Tensor], dict]) -> dict:
    """What `call` gives when every parameter and embedding has moved by about one rounding."""
    generator = torch.Generator().manual_seed(sp.subject.seed)

    def jitter(value: Tensor) -> Tensor:
        sign = torch.randint(2, value.shape, generator=generator, device="cpu").to(value) * 2 - 1
        return value * (1 + eps * sign)

    kept = [(parameter, parameter.detach().clone()) for parameter in sp.module.parameters()]
    try:
        with torch.no_grad():
            for parameter, value in kept:
                if value.is_floating_point():
                    parameter.copy_(jitter(value))
        return call(jitter(x) if x.is_floating_point() else x)
    finally:
        with torch.no_grad():
            for parameter, value in kept:
                parameter.copy_(value)

"""A subject built and called under a setting, in a copy of this process, and what the setting changes."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.endings import end_of
from nsa_doctor.core.errors import Caught, NotComparableError, attempt
from nsa_doctor.probes.attention.agreement import gradients, plain_output
from nsa_doctor.probes.attention.decoding import decode
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.flagged import OperationCounter
from nsa_doctor.probes.model.fork import CopyDiedError, in_fork
from nsa_doctor.probes.model.settings import Setting
from nsa_doctor.probes.numerics.precision import finest_precision

_LENGTHS, _TRAINED, _DECODED, _PROMPT = (33, 67), 17, 37, 33
_SECONDS = 60
_SAMPLES = 1024
_GRADIENT = "the gradient of "
_ROUNDINGS = 2.0**14  # any order of sums and any algorithm lies within; another method does not
_NARROW_ROUNDINGS = 16.0  # of values that pass through a narrower dtype than the output's, which one path may not do


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What came of it: results by name, operations each took, shapes of parameters, and what raised, by phase.

    `eps` is the unit roundoff of the narrowest dtype that values pass through on their way.
    """

    eps: float
    results: Mapping[str, Tensor]
    operations: Mapping[str, int]
    parameters: Mapping[str, list[Any]]
    raised: Mapping[str, str]

    def changed(self, other: "Trial") -> str:
        """Which result of the other is another, and by how much; empty where none is that both have."""
        for are_gradients in (False, True):  # what cancels in one gradient is of the size of the others
            own = {name: value for name, value in self.results.items() if name.startswith(_GRADIENT) is are_gradients}
            scale = max((float(value.double().abs().max()) for value in own.values() if value.numel()), default=0.0)
            for name, value in own.items():
                narrow = _NARROW_ROUNDINGS * max(self.eps, other.eps)
                if name in other.results and (words := _difference(name, value, other.results[name], scale, narrow)):
                    return words
        return ""

    def is_same(self, other: "Trial") -> bool:
        """Whether nothing at all tells one from the other."""
        if (self.parameters, self.raised, self.operations) != (other.parameters, other.raised, other.operations):
            return False
        return self.results.keys() == other.results.keys() and not self.changed(other)


def try_out(reference: BuiltModule, setting: Setting | None, *, is_late: bool = False) -> Trial:
    """Build the subject once more with the weights of the reference and call it, all under the setting.

    With `is_late` it is built without, and called with it. Raises NotComparableError when there is no answer.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder) / "results.pt"
        try:
            answer = in_fork(lambda: _tried(reference, setting, file, is_late=is_late), _SECONDS)
        except CopyDiedError as death:
            raised = {"calls": end_of(death.status)}
            return Trial(results={}, operations={}, parameters={}, raised=raised, eps=0.0)
        if answer is None or "parameters" not in answer:
            raise NotComparableError(f"the subject gave no answer with {setting or 'nothing set'}")
        results = torch.load(file, weights_only=True)
    return Trial(results=results, **answer)


def warm_up(reference: BuiltModule) -> None:
    """Call it here once in every way: what is imported late is then imported before copies are made."""
    with TemporaryDirectory() as folder, unobserved():
        _tried(reference, None, Path(folder) / "results.pt", is_late=False)


def _tried(reference: BuiltModule, setting: Setting | None, file: Path, *, is_late: bool) -> dict[str, Any]:
    holding: Callable[[], AbstractContextManager[Any]] = nullcontext if setting is None else setting.applied
    if setting is not None and not is_late:
        setting.import_again(reference.subject.packages)
    results: dict[str, Tensor] = {}
    operations: dict[str, int] = {}
    raised: dict[str, str] = {}
    parameters: dict[str, list[Any]] = {}
    eps = 0.0

    def note(phase: str, call: Callable[[], dict[str, Tensor]]) -> None:
        with OperationCounter() as counter:
            answer = attempt(call)
        if isinstance(answer, Caught):
            raised[phase] = answer.sentence
        else:
            results.update(answer)
            operations[phase] = counter.count

    with nullcontext() if is_late else holding():
        sp = attempt(lambda: rebuilt(reference))
    if isinstance(sp, Caught):
        raised["build"] = sp.sentence
    else:
        parameters = {name: [*each.shape, each.requires_grad] for name, each in sp.module.named_parameters()}
        with holding():
            for phase, call in _calls(sp).items():
                note(phase, call)
            precision = attempt(lambda: finest_precision(sp, sp.input(min(_TRAINED, sp.subject.max_length))))
            eps = 0.0 if isinstance(precision, Caught) else precision.eps
    torch.save(results, file)
    return {"operations": operations, "raised": raised, "parameters": parameters, "eps": eps}


def rebuilt(reference: BuiltModule) -> BuiltModule:
    """The subject built once more, with the weights of the reference where their shapes fit."""
    sp = built(reference.subject, dtype=reference.dtype, is_randomised=False)
    state = {**dict(reference.module.named_parameters()), **dict(reference.module.named_buffers())}
    with torch.no_grad():
        for name, value in sp.module.named_parameters():
            if name in state and state[name].shape == value.shape:
                value.copy_(state[name])
    return sp


def _calls(sp: BuiltModule) -> dict[str, Callable[[], dict[str, Tensor]]]:
    subject, most = sp.subject, sp.subject.max_length
    calls: dict[str, Callable[[], dict[str, Tensor]]] = {}
    for length in sorted({min(length, most) for length in _LENGTHS}):
        calls[f"the output at S={length}"] = lambda length=length: _output(sp, length)
    if "train" in subject.modes:
        calls["training"] = lambda: _gradients(sp, min(_TRAINED, most))
    if subject.offers("prefill") and subject.offers("step"):
        calls["decoding"] = lambda: _decoded(sp, min(_DECODED, most))
    return calls


def _output(sp: BuiltModule, length: int) -> dict[str, Tensor]:
    with torch.no_grad():
        return {f"the output at S={length}": sp(sp.input(length, 2))}


def _gradients(sp: BuiltModule, length: int) -> dict[str, Tensor]:
    sp.module.train()
    found = gradients(sp, plain_output(sp.subject), sp.input(length, 2))
    sp.module.eval()
    return {f"{_GRADIENT}{name}": _sample(value) for name, value in found.items()}


def _sample(gradient: Tensor) -> Tensor:
    """Values of it at equal distances, and its norm: large ones would take longer to hand over than to compute."""
    flat = gradient.flatten()
    return torch.cat((flat[:: max(1, flat.numel() // _SAMPLES)], flat.norm()[None]))


def _decoded(sp: BuiltModule, length: int) -> dict[str, Tensor]:
    prompt = min(_PROMPT, length - 1)
    return {"the decoded output": decode(sp, sp.input(length), [prompt, *[1] * (length - prompt)]).output}


def _difference(name: str, value: Tensor, other: Tensor, scale: float, narrow: float) -> str:
    if value.shape != other.shape:
        return f"{name} has the shape {list(other.shape)}, and {list(value.shape)} without"
    error = float((value.double() - other.double()).abs().max()) if value.numel() else 0.0
    bound = scale * max(_ROUNDINGS * torch.finfo(value.dtype).eps, narrow) if value.dtype.is_floating_point else 0.0
    return "" if error <= bound else f"{name} changes by up to {error:.2g} (tolerance {bound:.1g})"

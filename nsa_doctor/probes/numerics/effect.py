"""What a changed source does to a subject: its outputs and gradients beside those of the source as it stands."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, SubjectFailedError, attempt
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import BuiltModule, built, comparable_module
from nsa_doctor.probes.model.identity import shapes_of
from nsa_doctor.probes.model.inputs import make_cotangent
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.numerics.relabelling import relabelled
from nsa_doctor.probes.tensors.tolerance import deviation, largest
from nsa_doctor.subject.contract import Subject

_OUTPUT = "output"
_ROWS = 2
_STEPS = 3
_MOST_SECONDS = 4.0  # to look for another order of the parameters
Kind = Literal["changed", "same", "other order", "other parameters", "raises"]
Values = dict[str, Tensor]


@dataclass(frozen=True)
class Effect:
    """What a change does, and in words what changed first, where, and by how much."""

    kind: Kind
    said: str = ""


@dataclass(frozen=True)
class Place:
    """One pass: a length, and a mode or `decode`."""

    length: int
    mode: str

    def __str__(self) -> str:
        return f"S={self.length} ({self.mode})"


@dataclass(frozen=True)
class Terms:
    """How passes are made comparable: dtype, rows of a batch, and the parameters by name."""

    dtype: str
    rows: int
    parameters: Mapping[str, Tensor]


def places(subject: Subject, lengths: Sequence[int]) -> list[Place]:
    """The passes that are compared: every length in training and in evaluation, and decoded where that is offered."""
    modes: list[str] = [mode for mode in ("train", "eval") if mode in subject.modes]
    modes += ["decode"] if subject.offers("prefill") and subject.offers("step") else []
    return [Place(length, mode) for length in lengths for mode in modes if mode != "decode" or length > 1]


def values_at(subject: Subject, place: Place, terms: Terms) -> Values:
    """Output and gradients of one pass of the subject, built afresh; raises SubjectFailedError."""
    sp = built(subject, dtype=terms.dtype, mode="train" if place.mode == "train" else "eval", is_randomised=False)
    _give(sp.module, terms.parameters)
    x = sp.input(place.length, batch=terms.rows)
    if place.mode == "decode":
        return {_OUTPUT: _decoded(sp, x)}
    if place.mode == "eval":
        with torch.no_grad():
            return {_OUTPUT: sp(x)}
    x.requires_grad_(x.is_floating_point())
    output = sp(x)
    if not output.requires_grad:
        return {_OUTPUT: output}
    loss = (output * make_cotangent(output, subject.seed)).sum()
    ask("backward", loss.backward, sp.module, output)
    found = {"the input": x, **dict(sp.module.named_parameters())}
    gradients = {f"gradient of {name}": each.grad for name, each in found.items() if each.grad is not None}
    return {_OUTPUT: output.detach(), **gradients}


def terms_of(subject: Subject) -> Terms:
    """Float64 where the subject runs in it, parameters away from special values, several rows where it takes them."""
    sp = comparable_module(subject)
    parameters = {name: each.detach().clone() for name, each in sp.module.named_parameters()}
    several = Terms(sp.dtype, _ROWS, parameters)
    tried = attempt(lambda: values_at(subject, Place(_ROWS, "eval"), several))
    return Terms(sp.dtype, 1, parameters) if isinstance(tried, Caught) else several


def record(subject: Subject, lengths: Sequence[int], file: Path) -> Iterator[Place]:
    """Write to a file what the subject gives as it stands; yields each pass before it is made."""
    terms, passes = terms_of(subject), []
    for place in places(subject, lengths):
        yield place
        passes.append((place.length, place.mode, values_at(subject, place, terms)))
    kept = {"dtype": terms.dtype, "rows": terms.rows, "parameters": dict(terms.parameters), "passes": passes}
    torch.save(kept, file)


def compared(subject: Subject, file: Path) -> Iterator[Place | Effect]:
    """Each pass before it is made, and at the end what the subject does differently from what the file holds."""
    kept: dict[str, Any] = torch.load(file, weights_only=True, mmap=True)
    terms = Terms(kept["dtype"], kept["rows"], kept["parameters"])
    module = attempt(lambda: built(subject, is_randomised=False).module)
    if isinstance(module, Caught):
        yield Effect("raises", module.sentence)
        return
    if shapes_of(module) != {name: tuple(each.shape) for name, each in terms.parameters.items()}:
        yield Effect("other parameters", "its parameters have other names or shapes")
        return
    lost, answers = "", False
    for length, mode, expected in kept["passes"]:
        place = Place(length, mode)
        yield place
        if place not in places(subject, (length,)):
            lost = lost or f"does not decode any more at {place}"
            continue
        try:
            found = values_at(subject, place, terms)
        except SubjectFailedError as failure:
            lost = lost or f"raises at {place}: {failure.caught.sentence}"
            continue
        answers = True
        said = lost or _difference(found, expected, place, terms, getattr(torch, subject.dtype))
        if said:
            is_output = said.startswith(_OUTPUT)  # where a gradient alone is lost, no order gives it back
            is_ordered = is_output and not lost and _is_other_order(subject, module, kept["passes"], terms)
            yield Effect("other order" if is_ordered else "changed", said)
            return
    if lost:
        yield Effect("changed" if answers else "raises", lost)
    else:
        yield Effect("same")


def _is_other_order(
    subject: Subject, module: nn.Module, passes: Sequence[tuple[int, str, Values]], terms: Terms
) -> bool:
    """Whether parameters in another order, or of another sign, give everything that was written down but gradients."""
    outputs = [(Place(length, mode), {_OUTPUT: values[_OUTPUT]}) for length, mode, values in passes]
    place, expected = min(outputs, key=lambda each: (each[0].length < _ROWS, each[0].mode != "eval", each[0].length))
    dtype = getattr(torch, subject.dtype)
    sp = built(subject, dtype=terms.dtype, is_randomised=False)  # one for all: what is like there is looked at again
    x = sp.input(place.length, batch=terms.rows)

    def is_alike_there(parameters: Mapping[str, Tensor]) -> bool:
        _give(sp.module, parameters)
        with torch.no_grad():
            found = attempt(lambda: sp(x))
        return not isinstance(found, Caught) and not _difference({_OUTPUT: found}, expected, place, terms, dtype)

    def is_alike(place: Place, expected: Values, ordered: Terms) -> bool:
        found = attempt(lambda: values_at(subject, place, ordered)[_OUTPUT])
        return not isinstance(found, Caught) and not _difference({_OUTPUT: found}, expected, place, terms, dtype)

    end = time.perf_counter() + _MOST_SECONDS
    for parameters in relabelled(module, terms.parameters):
        if is_alike_there(parameters):
            ordered = replace(terms, parameters=parameters)
            return all(is_alike(*each, ordered) for each in outputs)
        if time.perf_counter() > end:
            break
    return False


def _difference(found: Values, expected: Values, place: Place, terms: Terms, dtype: torch.dtype) -> str:
    """The first value that differs by more than rounding in the subject's own dtype explains; nothing for none.

    Gradients cancel, those of a softmax over one key to nothing: they are held against the largest of the pass.
    """
    steepest = max((largest(each) for name, each in expected.items() if name != _OUTPUT), default=0.0)
    for name in {**expected, **found}:
        here, there = found.get(name), expected.get(name)
        if here is None or there is None:
            return f"{name} at {place}: {'there is none' if here is None else 'there is one'}"
        if here.shape != there.shape:
            return f"{name} at {place}: shape {list(here.shape)} where it was {list(there.shape)}"
        size = max(terms.rows * place.length, *here.shape[1:], 1)
        scale = None if name == _OUTPUT else steepest
        near = deviation(here.to(dtype), there.to(dtype), there, num_terms=size, scale=scale)
        if not near.is_within:
            far = "not finite" if near.error != near.error else f"by up to {near.error:.2g}"
            return f"{name} at {place}: {far}, where values reach {largest(there):.2g}"
    return ""


def _decoded(sp: BuiltModule, x: Tensor) -> Tensor:
    """The outputs of a prompt and of a few steps after it."""
    subject, module = sp.subject, sp.module
    assert subject.prefill is not None
    assert subject.step is not None
    prefill, step = subject.prefill, subject.step
    prompt = max(1, x.shape[1] - _STEPS)
    seed_everything(subject.seed)
    with torch.no_grad():
        output, cache = ask("prefill", lambda: prefill(module, x[:, :prompt].clone()), module)
        outputs = [_tensor(subject, output, x[:, :prompt])]
        for at in range(prompt, x.shape[1]):
            token = x[:, at : at + 1]
            output, cache = ask("step", lambda token=token, cache=cache: step(module, token.clone(), cache), module)
            outputs.append(_tensor(subject, output, token))
    return torch.cat([output[:, -1:] for output in outputs], dim=1)


def _tensor(subject: Subject, answer: object, x: Tensor) -> Tensor:
    """What a step of decoding gives: a prompt may be answered for its last token alone."""
    if isinstance(answer, Tensor) and answer.ndim == 3:
        return answer
    return ask("step", lambda: checked_answer(subject, answer, x)[0], None)


def _give(module: nn.Module, parameters: Mapping[str, Tensor]) -> None:
    """Have a module compute with these parameters, whatever it drew of its own."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in parameters:
                parameter.copy_(parameters[name])

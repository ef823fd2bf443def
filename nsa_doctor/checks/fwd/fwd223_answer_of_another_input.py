"""FWD223 answer-of-another-input

Detects: a call that gives what an earlier one computed of other values: kept by the input's object, address or shape,
by its sum, or by its first and last tokens. Also one that answers for other values of another tensor that its forward
takes, as times, positions or a mask, kept by shape alone; what a method of the module resets is left alone.
Matters: two batches that look alike to the key are one to the module; the second is answered with the first.
Fix: key what is kept by what it is computed from: all values, or the length for what depends on that alone.

Example:
    # faulty
    key = (x.shape, float(x.sum()))  # the same for the tokens in another order
    if self.gaps is None or self.gaps.shape != shape: self.gaps = gaps_of(times)  # of another call's times
    # correct
    key = x.shape[1]  # for a table of positions; an output is kept by nobody
    gaps = gaps_of(times)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.kept_arguments import kept_arguments
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 18, 3


def run(subject: Subject) -> Iterator[Finding]:
    ways = _alike(torch.zeros(1, 2, 2))
    found = (_examine(subject, words, has_grad) for words in ways for has_grad in (False, True))
    first = next(filter(None, found), None)
    yield from [first] if first else _of_arguments(subject)


def _alike(x: Tensor) -> dict[str, Tensor]:
    """Other inputs that a careless key takes for x."""
    middle = torch.cat((x[:, :1], x[:, 1:-1].flip(1), x[:, -1:]), dim=1)[:, : x.shape[1]]
    return {
        "the same tokens in reverse order": x.flip(1),
        "the same first and last tokens": middle,
        "the same rows in reverse order": x.flip(0),
    }


def _examine(subject: Subject, words: str, has_grad: bool) -> Finding | None:
    used, new = (comparable_module(subject) for _ in range(2))
    x = used.input(min(_LENGTH, subject.max_length), _ROWS)
    base = baseline(new, _alike(x)[words])
    given = _called_before(used, x, words, has_grad)
    with torch.set_grad_enabled(has_grad):
        expected = new(base.x).detach()
        found = base.departure(used.call(given).detach(), expected=expected)
    return None if found is None else _finding(subject, words, has_grad, x, found)


def _called_before(sp: BuiltModule, x: Tensor, words: str, has_grad: bool) -> Tensor:
    """The very tensor of an earlier call, which holds other values since: those that look like x."""
    given = x.clone()
    with torch.set_grad_enabled(has_grad):
        sp.call(given)
    return given.copy_(_alike(x)[words])


def _finding(subject: Subject, words: str, has_grad: bool, x: Tensor, found: Departure) -> Finding:
    used, new = (comparable_module(subject) for _ in range(2))
    given = _called_before(used, x, words, has_grad)
    with torch.set_grad_enabled(has_grad):
        divergence = first_divergence(used, lambda: new.call(given.clone()), lambda: used.call(given), {})
    at = f"; outputs first diverge at {divergence.operation}" if divergence.operation else ""
    return Finding(
        message=f"after a call, {words} in the same tensor at S={x.shape[1]} give another output than in a first call: "
        f"{found.text}{at}",
        where=divergence.place,
        evidence={"length": x.shape[1], "error": found.error, "floor": found.floor},
        repro=command_for(subject, "FWD223"),
    )


def _of_arguments(subject: Subject) -> Iterator[Finding]:
    """Those of the tensors that its forward takes beside its input."""
    with torch.no_grad(), unobserved():  # what it raises for values that it does not take is none of its faults
        found = attempt(lambda: list(kept_arguments(subject, min(_LENGTH, subject.max_length), _ROWS)))
    for kept in found[:1] if isinstance(found, list) else []:
        seen = kept.evidence
        yield Finding(message=kept.text, where=kept.place, evidence=seen, repro=command_for(subject, "FWD223"))


def planted(subject: Subject) -> Subject:
    def keeps_outputs_by_a_sum(module: nn.Module, x: Tensor) -> Tensor:
        kept = vars(module).setdefault("outputs_by_a_sum", {})
        key = x.shape, x.dtype, module.training, torch.is_grad_enabled(), round(float(x.detach().sum()), 6)
        if key not in kept:
            kept[key] = subject.forward(module, x)
        return kept[key] * 1

    return replace(subject, forward=keeps_outputs_by_a_sum)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD206", "FWD208", "FWD210", "NAN101"),
    explained_by=("FWD206", "FWD210"),
    priority=406,
)

"""FWD206 two-runs-differ

Detects: the same input gives another output in `eval()`: from run to run, after other calls, or by the random seed.
Matters: nothing measured can be repeated; a result depends on what ran before it, and no comparison means anything.
Fix: look at the line named: dropout or noise that `eval()` does not switch off, state kept from the last call, memory
that was never written. Where outputs are samples, say `--spec stochastic`: then they are to be the same by the same
seed.

Example:
    # faulty
    y = F.dropout(y, p=0.1)  # training is True unless it is given: eval() does not switch this off
    # correct
    y = F.dropout(y, p=0.1, training=self.training)
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import departure_finding, odd_lengths
from nsa_doctor.core.check import Check
from nsa_doctor.core.declared import Declaration
from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module, require_finite
from nsa_doctor.probes.numerics.compare import Departure, departure
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.probes.numerics.precision import finest_precision
from nsa_doctor.subject.contract import Subject

_WAYS = ("run to run", "after calls with other input", "with another random seed")
_ROUNDINGS = 64.0  # sums in another order, as atomics on a GPU make them


def run(subject: Subject) -> Iterator[Finding]:
    ways = _WAYS[:2] if Declaration.STOCHASTIC in subject.spec else _WAYS
    for way in ways[:1] if subject.is_slow else ways:
        for length in odd_lengths(subject)[:2]:
            found = _changed(subject, length, way)
            if found is not None and _changed(replace(subject, seed=subject.seed + 1), length, way) is not None:
                yield _finding(subject, length, way, found)
                return


def _changed(subject: Subject, length: int, way: str) -> Departure | None:
    built = comparable_module(subject)
    x = built.input(length)
    eps = finest_precision(built, x[:, :32]).eps
    with torch.no_grad():
        first = require_finite(built(x), length)
        scale = first.double().abs().flatten(2).amax(-1)
        return departure(_again(built, x, way), first, _ROUNDINGS * eps * scale)


def _again(built: BuiltModule, x: Tensor, way: str) -> Tensor:
    """The same input once more, under circumstances that must not matter."""
    if way == "after calls with other input":
        for length in (1, max(1, x.shape[1] // 2), x.shape[1]):
            with suppress(SubjectFailedError):  # seen by whoever observes; what comes after it can be compared
                built(built.input(length, seed=built.subject.seed + 1))
    if way == "with another random seed":
        return replace(built, subject=replace(built.subject, seed=built.subject.seed + 1))(x)
    return built(x)


def _finding(subject: Subject, length: int, way: str, found: Departure) -> Finding:
    built = comparable_module(subject)
    x = built.input(length)
    if way == "after calls with other input":
        fresh = comparable_module(subject)
        with torch.no_grad():
            _again(built, x, way)
        divergence = first_divergence(built, lambda: fresh(x), lambda: built(x), {})
    else:
        divergence = first_divergence(built, lambda: built(x), lambda: _again(built, x, way), {})
    message = f"the same input gives another output {way} in eval() at S={length}"
    finding = departure_finding(subject, "FWD206", message, divergence, found, length=length, way=way)
    if way != _WAYS[2] or "--subject" not in subject.options:
        return finding
    return replace(finding, message=f"{finding.message}; if that is meant, say --spec stochastic")


def planted(subject: Subject) -> Subject:
    def always_drops(module: nn.Module, x: Tensor) -> Tensor:
        return nn.functional.dropout(subject.forward(module, x), 0.1, training=True)

    return replace(subject, forward=always_drops)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, profile="smoke", priority=400, fuzzed=("two calls differ",), telling=True
)

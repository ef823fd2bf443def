"""FWD220 output-of-earlier-weights

Detects: an output in `eval()` that still follows weights which have changed since: after steps of an optimizer, or with
weights loaded into a module that was called before, it is not that of a new module with the same weights.
Matters: an evaluation during training measures an older model; a checkpoint is served with a part of another.
Fix: compute what derives from weights in each call, or drop what is kept in `train()` and after loading.

Example:
    # faulty
    if self.bias is None:
        self.bias = -self.log_slope.exp() * self.distances  # of the first call, for ever
    # correct
    bias = -self.log_slope.exp() * self.distances
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import confirmed, departure_finding, one
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, NotApplicableError, NotComparableError, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Mode
from nsa_doctor.probes.hooks.lines_apart import in_its_file
from nsa_doctor.probes.model.built_module import BuiltModule, built, comparable_module, randomise
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject

_LENGTH = 67
_MODES: tuple[Mode, ...] = ("no_grad", "eval")


def run(subject: Subject) -> Iterator[Finding]:
    modes = [mode for mode in _MODES if mode in subject.modes]
    if not modes or not any(each.requires_grad for each in built(subject).module.parameters()):
        raise NotApplicableError("it has no parameter that is trained, or no eval()")
    yield from one(_examined(subject, mode) for mode in modes)


def _examined(subject: Subject, mode: Mode) -> Finding | None:
    found = confirmed(subject, lambda subject: _departure(subject, mode))
    if found is None:
        return None
    used, fresh = _pair(subject, mode)
    x = _input(used)
    divergence = first_divergence(used, _calling(fresh, x, mode), _calling(used, x, mode), {})
    used, fresh = _pair(subject, mode)
    place = in_its_file(subject, divergence.place, _calling(used, x, mode), _calling(fresh, x, mode))
    how = "under no_grad" if mode == "no_grad" else "with gradients"
    message = (
        f"after its weights have changed, a call in eval() {how} at S={x.shape[1]} gives another output than a new "
    )
    message += "module with these weights"
    return departure_finding(subject, "FWD220", message, replace(divergence, place=place), found, mode=mode)


def _departure(subject: Subject, mode: Mode) -> Departure | None:
    used, fresh = _pair(subject, mode)
    x = _input(used)
    base = baseline(fresh, x)
    return base.departure(_calling(used, x, mode)(), expected=_calling(fresh, x, mode)())


def _pair(subject: Subject, mode: Mode) -> tuple[BuiltModule, BuiltModule]:
    """A module whose weights have changed since it was called, and a new one with the same weights."""
    used = comparable_module(subject)
    _calling(used, _input(used), mode)()
    used.module.train("train" in subject.modes)
    randomise(used.module, subject.seed + 1)  # in place, as an optimizer does
    state = used.module.state_dict()
    fresh = built(subject, dtype=used.dtype, mode="train", is_randomised=False)
    loaded = attempt(lambda: fresh.module.load_state_dict(state))
    if isinstance(loaded, Caught):
        raise NotComparableError(f"its own state_dict() cannot be loaded into a new module: {loaded.sentence}")
    for each in (used, fresh):
        each.module.eval()
    return used, fresh


def _calling(sp: BuiltModule, x: Tensor, mode: Mode) -> Callable[[], Tensor]:
    def call() -> Tensor:
        with torch.set_grad_enabled(mode != "no_grad"):
            return sp(x).detach()

    return call


def _input(sp: BuiltModule) -> Tensor:
    return sp.input(min(_LENGTH, sp.subject.max_length))


def planted(subject: Subject) -> Subject:
    def scales_by_earlier_weights(module: nn.Module, x: Tensor) -> Tensor:
        sizes = [float(each.detach().abs().sum()) for each in module.parameters() if each.requires_grad]
        kept = vars(module).setdefault("kept_size", sum(sizes))
        output: Tensor = subject.forward(module, x)
        return output * (1 + kept / (1 + kept) + sum(sizes) / (1 + kept))

    return replace(subject, forward=scales_by_earlier_weights)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD206", "FWD210", "NAN101"),
    explained_by=("FWD210",),
    priority=440,
)

"""FWD207 mode-changes-output

Detects: training and eval(), or gradients on and off, give different outputs though no random numbers are drawn and
torch's own layers that depend on the mode (dropout, batch norm, attention) stay in eval(); training mode draws them
without gradients alone, or gives another output with gradients than without. Where the documentation says that training
and evaluation differ on purpose, it is a note.
Matters: what is evaluated and served is not what was trained.
Fix: look at the line named for a branch on `self.training`, or for one of autograd's modes.

Example:
    # faulty
    scale = 1.0 if self.training else q.shape[-1] ** -0.5
    scores = q @ k.mT * scale
    # correct
    scores = q @ k.mT * q.shape[-1] ** -0.5
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import branch_finding, confirmed, odd_lengths, one
from nsa_doctor.checks._shared.gradients_on_and_off import changed_by_recording, odd_draws
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.measurement import Mode
from nsa_doctor.probes.behaviour.meant_modes import is_said_to_depend_on_mode
from nsa_doctor.probes.internal import DROPOUTS, NORMS_BY_BATCH
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.model.running_state import RunningState
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.subject.contract import Subject

_ROWS = 3  # of two, a mix-up in two layers of a model undoes itself
_DEPEND_ON_MODE = (DROPOUTS, nn.RNNBase, NORMS_BY_BATCH, nn.MultiheadAttention, nn.TransformerEncoderLayer)


def run(subject: Subject) -> Iterator[Finding | Note]:
    length = odd_lengths(subject)[0]
    comparisons: list[tuple[str, Mode]] = (
        [("training mode", "train")] if {"train", "eval"} <= set(subject.modes) else []
    )
    comparisons += [("eval() with gradients", "eval")] if {"no_grad", "eval"} <= set(subject.modes) else []
    found = list(one(_examine(subject, length, what, mode) for what, mode in comparisons))
    if found and is_said_to_depend_on_mode(comparable_module(subject).module, found[0].where):
        yield Note(message=f"{found[0].message}, as its documentation says it is meant to", where=found[0].where)
        return
    if not found and "train" in subject.modes:
        training = partial(_in_mode, mode="train")
        found = list(one(look(training, subject, length) for look in (odd_draws, changed_by_recording)))
    yield from found


def _examine(subject: Subject, length: int, what: str, mode: Mode) -> Finding | None:
    found = confirmed(subject, lambda subject: _changed(subject, length, mode))
    if found is None:
        return None
    other, evaluated = _in_mode(subject, mode), comparable_module(subject)
    x = evaluated.input(length, _ROWS)
    ways = (lambda: _output(other, x, mode)), (lambda: _output(evaluated, x, "no_grad"))
    message = f"{what} gives another output than eval() under no_grad at S={length}, and draws no random numbers"
    return branch_finding(other, "FWD207", message, ways, found, length=length, mode=mode)


def _changed(subject: Subject, length: int, mode: Mode) -> Departure | None:
    other, evaluated = _in_mode(subject, mode), comparable_module(subject)
    base = baseline(evaluated, evaluated.input(length, _ROWS))
    seed_everything(subject.seed)  # as each call does
    before = (torch.get_rng_state().tolist(), random.getstate())
    output = _output(other, base.x, mode)
    after = RunningState(other.module)
    is_random = before != (torch.get_rng_state().tolist(), random.getstate())
    again = _output(replace(other, subject=replace(subject, seed=subject.seed + 1)), base.x, mode)
    is_other = bool(((output != again) & ~(output.isnan() & again.isnan())).any())  # whatever it was drawn by
    found = None if is_random or is_other else base.departure(output)
    if found is None:
        return None
    after.give(evaluated.module)  # a power iteration, say, comes before its vectors are used
    return baseline(evaluated, base.x).departure(output)


def _in_mode(subject: Subject, mode: Mode) -> BuiltModule:
    """The module in a mode, but for layers that rightly depend on it: they stay in eval()."""
    built = comparable_module(subject, mode=mode)
    for part in built.module.modules():
        if part is not built.module and _may_depend_on_mode(part):
            part.eval()
    return built


def _may_depend_on_mode(part: nn.Module) -> bool:
    """Whether it is a layer of torch's that does, or a batch norm of anybody's."""
    buffers = {name for name, _ in part.named_buffers(recurse=False)}
    is_torchs = isinstance(part, _DEPEND_ON_MODE) and type(part).__module__.startswith("torch.")
    return is_torchs or isinstance(part, NORMS_BY_BATCH) or {"running_mean", "running_var"} <= buffers


def _output(built: BuiltModule, x: Tensor, mode: Mode) -> Tensor:
    with torch.set_grad_enabled(mode == "eval"):  # training mode is compared without, so that it alone differs
        return built(x).detach()


def planted(subject: Subject) -> Subject:
    def forgets_a_scale(module: nn.Module, x: Tensor) -> Tensor:
        return subject.forward(module, x) * (1.0 if module.training else 0.9)

    return replace(subject, forward=forgets_a_scale)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD206",), priority=420)

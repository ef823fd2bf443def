"""On which line of a training loop the values were born that made parameters or the loss not finite."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.probes.hooks.lineage import KINDS, Kind, Record
from nsa_doctor.probes.hooks.places import Places
from nsa_doctor.probes.hooks.tracer import Tracer
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.state import preserved_state, seed_everything
from nsa_doctor.probes.model.stepping import step
from nsa_doctor.probes.model.training import new_optimizer, take_step
from nsa_doctor.probes.tensors.finite import holds_nonfinite, isfinite
from nsa_doctor.subject.contract import Subject

_NUM_STEPS = 4


@dataclass(frozen=True, kw_only=True)
class BadStep:
    """A step, counted from 1, after which these parameters or the loss are not finite.

    `gradient_at_start` is the norm of the first step's gradient, 0 where that is not finite.
    """

    number: int
    names: tuple[str, ...]
    loss: float
    gradient_at_start: float


def first_bad_step(subject: Subject, length: int, rate: float, rows: int | None = None) -> BadStep | None:
    """The first of some steps of the loop by plain descent at that rate that leaves something not finite.

    Each is on so many `rows`, or on as few as the module takes.
    """
    sp = built(subject, mode="train", is_randomised=False)
    optimizer, size = new_optimizer(sp.module, rate), 0.0
    for number in range(1, _NUM_STEPS + 1):
        taken = step(sp, optimizer, sp.input(length, rows, subject.seed + number - 1))
        size = math.sqrt(taken.squared_gradient) if number == 1 else size
        names = tuple(name for name, value in taken.after.items() if not bool(isfinite(value).all()))
        if names or not math.isfinite(taken.loss):
            size = size if math.isfinite(size) else 0.0
            return BadStep(number=number, names=names, loss=taken.loss, gradient_at_start=size)
    return None


def birth_in_step(subject: Subject, length: int, rate: float, bad_step: BadStep) -> Record | None:
    """The operation in that step that first made what is not finite; None when tracing it shows none."""
    number, names = bad_step.number, bad_step.names
    sp = built(subject, mode="train", is_randomised=False)
    optimizer = new_optimizer(sp.module, rate)
    tracer = Tracer(Places(FrameFilter(subject.packages)))
    with preserved_state(), torch.enable_grad():
        for index in range(number - 1):
            take_step(sp, optimizer, sp.input(length, seed=subject.seed + index))
        x = sp.input(length, seed=subject.seed + number - 1)
        tracer.know(sp.module, x)
        seed_everything(subject.seed)
        train_step = subject.train_step
        assert train_step is not None
        with tracer.phase("training step"):
            loss = attempt(lambda: train_step(sp.module, optimizer, x.clone()))
    if isinstance(loss, Caught):
        return None
    parameters = dict(sp.module.named_parameters())
    tensors: list[Tensor] = [parameters[name] for name in names if name in parameters]
    tensors += [loss] if not names and isinstance(loss, Tensor) else []
    bad = [tensor.detach() for tensor in tensors if holds_nonfinite(tensor)]
    starts = [record for tensor in bad for kind in KINDS for record in _sources(tracer, tensor, kind)]
    return min(_origins(starts), key=lambda record: record.index, default=None)


def _sources(tracer: Tracer, tensor: Tensor, kind: Kind) -> list[Record]:
    seen = torch.isnan(tensor) if kind == "NaN" else torch.isinf(tensor)
    return tracer.lineage.sources(tensor, kind) if bool(seen.any()) else []


def _origins(starts: list[Record]) -> list[Record]:
    """Records at the start of these ones' lineage that computed something; a mask of -inf is no start."""
    waiting, seen, found = list(starts), set(), []
    while waiting:
        record = waiting.pop()
        if id(record) in seen:
            continue
        seen.add(id(record))
        parents = [parent for kind in KINDS for parent in record.parents.get(kind, [])]
        if record.masks or not parents:
            found += [] if record.holder else [record]
        else:
            waiting += parents
    return found

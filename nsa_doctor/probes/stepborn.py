"""On which line of a training loop the values were born that made parameters or the loss not finite."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nsa_doctor.frames import FrameFilter
from nsa_doctor.probes.finite import holds_nonfinite
from nsa_doctor.probes.lineage import KINDS, Kind, Record
from nsa_doctor.probes.places import Places
from nsa_doctor.probes.specimen import specimen
from nsa_doctor.probes.state import preserved_state, seed_everything
from nsa_doctor.probes.tracer import Tracer
from nsa_doctor.probes.training import new_optimizer, take_step
from nsa_doctor.runner import Caught, attempt
from nsa_doctor.subject import Subject


def birth_in_step(subject: Subject, length: int, rate: float, number: int, names: Sequence[str]) -> Record | None:
    """The operation, in step `number`, that first made what these parameters (the loss without any) came to hold.

    None when tracing it shows none.
    """
    sp = specimen(subject, mode="train", is_randomised=False)
    optimizer = new_optimizer(sp.module, rate)
    tracer = Tracer(Places(FrameFilter(subject.packages)))
    with preserved_state(), torch.enable_grad():
        for index in range(number - 1):
            take_step(sp, optimizer, sp.input(length, seed=subject.seed + index))
        x = sp.input(length, seed=subject.seed + number - 1)
        tracer.know(sp.module, x)
        seed_everything(subject.seed)
        step = subject.train_step
        assert step is not None
        with tracer.phase("training step"):
            loss = attempt(lambda: step(sp.module, optimizer, x.clone()))
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

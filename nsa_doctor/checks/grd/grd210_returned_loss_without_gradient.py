"""GRD210 returned-loss-without-gradient

Detects: a loss that a training call returns beside its output, that depends on the parameters and carries no gradient
to any of them: a balancing or auxiliary loss of detached values, or computed under no_grad. One that is kept on a
module, or detached as a whole, may be for the log: a note.
Matters: it is added to the loss, falls or rises by itself, and trains nothing: experts collapse, and the curve looks
fine.
Fix: compute it of what carries the gradient (the router's probabilities), and detach only a copy that is logged.

Example:
    # faulty
    aux_loss = num_experts * (load * probs.detach().mean(0)).sum()
    # correct
    aux_loss = num_experts * (load * probs.mean(0)).sum()
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nsa_doctor.checks._shared.gradient import training_bench
from nsa_doctor.checks._shared.wrong_gradient import wrong_gradient
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.probes.gradients.derivative import Agreement
from nsa_doctor.probes.hooks.tensor_owners import tensors_held
from nsa_doctor.probes.internal import memory_of
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.probes.model.training import forward_backward
from nsa_doctor.subject.contract import Subject

_LENGTH, _SEEDS = 19, (0, 1, 2)
_LOSS = re.compile(r"loss[^.]*$", re.IGNORECASE)  # in the last part of a name


def run(subject: Subject) -> Iterator[Finding | Note]:
    if "train" not in subject.modes:
        raise NotApplicableError("it does not run in training mode")
    sp = comparable_module(subject, mode="train")
    with _Detached() as detached:
        done = forward_backward(sp, sp.input(min(_LENGTH, subject.max_length)))
    returned = _named(done.others)
    losses = {**_kept(sp.module), **returned}
    if not losses:
        raise NotApplicableError("it returns no loss beside its output, and keeps none")
    if any(loss.requires_grad for loss in losses.values()):  # what is detached beside one that trains is for the log
        return
    for name, loss in losses.items():
        alone = replace(subject, forward=_alone(subject, name))
        for mode, length, make in training_bench(alone, sp.dtype):
            if make(length).agreement(_SEEDS) is Agreement.DIFFERS:
                found = wrong_gradient(subject, "GRD210", mode, length, None, make, of=f"the gradient of {name}")
                is_for_the_log = name not in returned or memory_of(loss) in detached.results
                yield Note(message=found.message, where=found.where) if is_for_the_log else found
                return


class _Detached(TorchFunctionMode):
    """The memory of what was detached as it is: a copy for the log, where it is all of a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.results: set[int] = set()
        self._alive: list[Tensor] = []  # or memory would be given to another tensor

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function."""
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "detach" and isinstance(result, Tensor):
            self._alive.append(result)
            self.results.add(memory_of(result))
        return result


def _named(others: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Numbers beside the output that their names call a loss."""
    losses = {name: each for name, each in others.items() if _LOSS.search(name) and each.numel() == 1}
    return {name.strip("."): each for name, each in losses.items()}


def _kept(module: nn.Module) -> dict[str, Tensor]:
    """Those that it keeps after a call."""
    held = {f"{each.module}.{each.way}": each.tensor for each in tensors_held(module)}
    return _named({name: each for name, each in held.items() if each.is_floating_point()})


def _alone(subject: Subject, name: str) -> Callable[[nn.Module, Tensor], Tensor]:
    """A forward whose output [B, S, ...] is the loss at every place."""

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        output, others = checked_answer(subject, subject.forward(module, x), x)
        return {**_kept(module), **_named(others)}[name].reshape(1, 1, 1).expand(output.shape)

    return forward


def planted(subject: Subject) -> Subject:
    def with_detached_loss(module: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        output, _ = checked_answer(subject, subject.forward(module, x), x)
        return output, {"aux_loss": output.detach().square().mean()}

    return replace(subject, forward=with_detached_loss)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD206", "NAN101", "NAN102"), priority=545)

"""Weights that are stacked in one parameter, of which one is computed with for nothing."""

from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import comparable_pass, lengths_for, trainable, watched_pass
from nsa_doctor.checks._shared.without_effect import in_other_orders
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.places import parameter_place
from nsa_doctor.probes.internal import DispatchWatcher, memory_of
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.tensors.operations import tensors_in
from nsa_doctor.subject.contract import Subject

_FEWEST, _MOST = 3, 64  # of a stack
_LENGTHS, _ROWS = (67, 131, 260, 3), 4


def dead_in_stacks(subject: Subject) -> list[tuple[list[str], Place]]:
    """(names with the places in the stack, where they are read) of what is computed with and has no effect, by line."""
    module = built(subject, mode="train").module
    left = {name: torch.ones(len(p), dtype=torch.bool) for name, p in trainable(module) if _is_stack(p)}
    for sp, length in in_other_orders(subject, _LENGTHS):
        if not left:
            return []
        comparable_pass(sp, sp.input(length, _ROWS, seed=subject.seed + length))
        for name, parameter in trainable(sp.module):
            if name in left:
                left[name] &= _is_untouched(parameter)
        left = {name: dead for name, dead in left.items() if bool(dead.any())}
    few = {name: dead for name, dead in left.items() if 2 * int(dead.sum()) < len(dead)}
    used, changing = _used(subject, few), _changing(subject, few)
    few = {name: dead & used[name] for name, dead in few.items() if name not in changing}
    groups: dict[tuple[str, int], list[tuple[str, Place]]] = {}
    for name in [name for name, dead in few.items() if bool(dead.any())]:
        sp = built(subject, mode="train")
        _, watch = watched_pass(sp, sp.input(lengths_for(subject)[0]), [])
        place = parameter_place(watch.place_of(dict(sp.module.named_parameters())[name]), sp.module, name)
        groups.setdefault((place.file, place.line), []).append(
            (f"{name}{few[name].nonzero().flatten().tolist()}", place)
        )
    return [([name for name, _ in same], same[0][1]) for same in groups.values()]


def _is_stack(parameter: nn.Parameter) -> bool:
    return parameter.ndim >= 3 and _FEWEST <= len(parameter) <= _MOST


def _is_untouched(parameter: nn.Parameter) -> Tensor:
    """Of each of the stack whether its gradient holds zeros alone; of none where there is no gradient at all."""
    if parameter.grad is None:
        return torch.ones(len(parameter), dtype=torch.bool)
    return ~(parameter.grad.to_dense() != 0).flatten(1).any(1).cpu()


class _Uses(DispatchWatcher):
    """Which of each stack a computation reads beside another tensor, with a result that is not empty."""

    def __init__(self, stacks: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self.used = {name: torch.zeros(len(each), dtype=torch.bool) for name, each in stacks.items()}
        self._stacks = {memory_of(each): (name, each) for name, each in stacks.items()}

    def run_operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation and note what it reads."""
        results = func(*args, **kwargs)
        given = tensors_in(args, kwargs)
        memories = {memory_of(each) for each in given}
        if len(memories) > 1 and any(each.numel() and memory_of(each) not in memories for each in tensors_in(results)):
            for name, stack, each in (
                (*self._stacks[key], each) for each in given if (key := memory_of(each)) in self._stacks
            ):
                if (index := _index_of(stack, each)) is not None:
                    self.used[name][index] = True
        return results


def _index_of(stack: Tensor, view: Tensor) -> int | None:
    """Which of the stack the view is of; None of several at once, of which it is not seen which count."""
    index, inside = divmod(int(view.storage_offset()) - int(stack.storage_offset()), stack.stride(0))
    reach = inside + sum((size - 1) * step for size, step in zip(view.shape, view.stride(), strict=True))
    return index if view.numel() and reach < stack.stride(0) else None


def _used(subject: Subject, few: dict[str, Tensor]) -> dict[str, Tensor]:
    """Which of each of these stacks are computed with in some pass."""
    used = {name: torch.zeros_like(dead) for name, dead in few.items()}
    for sp, length in in_other_orders(subject, _LENGTHS) if few else ():
        watcher = _Uses({name: p for name, p in trainable(sp.module) if name in few and p.is_contiguous()})
        with torch.no_grad(), watcher:
            sp(sp.input(length, _ROWS))
        for name, now in watcher.used.items():
            used[name] |= now
    return used


def _changing(subject: Subject, few: dict[str, Tensor]) -> set[str]:
    """Those of which other values in the same places change the output."""
    changing: set[str] = set()
    for sp, length in in_other_orders(subject, _LENGTHS) if few else ():
        x, named = sp.input(length, _ROWS), dict(sp.module.named_parameters())
        with torch.no_grad():
            plain = sp(x)
            for name in few:
                held = named[name].detach().clone()
                named[name][few[name].to(held.device)] += 3 * held.abs().amax() + 1
                if not torch.equal(sp(x), plain):
                    changing.add(name)
                named[name].copy_(held)
    return changing

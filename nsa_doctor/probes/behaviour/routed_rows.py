"""Which tokens the experts of a mixture are given, beside the scores that its router gave them.

A router scores each expert for a token, and the best ones are given it (arXiv 1701.06538, section 2.1).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule

_FEWEST_EXPERTS, _FEWEST_TOKENS = 3, 64
_MOST_TOKENS = 4096
_SPARSE = 0.6  # of all pairs of a token and an expert
_CHANCE = 0.1  # by which more tokens than by chance reach their best expert, at the least
_TIMES = 1.4
_MOST = 0.9


@dataclass(frozen=True)
class Routed:
    """A holder of experts, and shares of its tokens: that reach the best expert, that reach any one, and that go to
    the worst one oftener than to the best.

    `given` is what the first expert was given.
    """

    name: str
    router: str
    best: float
    any_one: float
    worst_oftener: float
    given: Tensor

    @property
    def is_reversed(self) -> bool:
        """Whether the worst expert gets nearly every token oftener than the best one."""
        return self.worst_oftener >= _MOST

    @property
    def is_by_chance(self) -> bool:
        """Whether the best expert gets a token no oftener than any other, and not all get all."""
        is_little = self.best <= min(self.any_one + _CHANCE, _TIMES * self.any_one)
        return self.any_one <= _SPARSE and is_little


@dataclass
class _Mixture:
    name: str
    holder: nn.Module
    experts: list[nn.Module]
    scores: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)  # a router's name, its input, its output
    rows: list[tuple[int, Tensor]] = field(default_factory=list)  # an expert's number, what it was given
    is_open: bool = False
    is_done: bool = False


def routed(sp: BuiltModule, x: Tensor) -> Iterator[Routed]:
    """Of every module that holds a list of experts and gives them tokens as a router scores them: its first call.

    A router is a linear layer: whose weights, turned round, send tokens elsewhere. What has a number of its own for
    each expert beside may well choose by that.
    """
    for mixture in _seen(sp, x):
        every = [(name, found) for name, *score in mixture.scores if (found := _compared(mixture, name, *score))]
        every = [(name, found) for name, found in every if _leads(sp, x, mixture, name)]
        if every:
            yield max((found for _, found in every), key=lambda found: (found.best, -found.worst_oftener))


def _seen(sp: BuiltModule, x: Tensor) -> list[_Mixture]:
    mixtures = list(_mixtures(sp.module))
    handles = [handle for each in mixtures for handle in _watched(each)]
    try:
        with torch.no_grad():
            sp(x)
    finally:
        for handle in handles:
            handle.remove()
    return mixtures


def _leads(sp: BuiltModule, x: Tensor, mixture: _Mixture, router: str) -> bool:
    """Whether experts are given other tokens where the router's weights have another sign."""
    weight = part_at(mixture.holder, router).weight
    assert isinstance(weight, Tensor)
    with torch.no_grad(), unobserved():  # what it raises for weights that it never has is none of its faults
        weight.neg_()
        seen = attempt(lambda: _seen(sp, x))
        weight.neg_()
    if isinstance(seen, Caught):
        return False
    again = next(each for each in seen if each.holder is mixture.holder and each.experts == mixture.experts)
    is_same = len(mixture.rows) == len(again.rows) and all(
        number == other and torch.equal(rows, other_rows)
        for (number, rows), (other, other_rows) in zip(mixture.rows, again.rows, strict=True)
    )
    return not is_same


def _mixtures(root: nn.Module) -> Iterator[_Mixture]:
    for name, holder in root.named_modules():
        for part in holder.children():
            experts = list(part) if isinstance(part, nn.ModuleList) else []
            are_alike = len(experts) >= _FEWEST_EXPERTS and len({type(each) for each in experts}) == 1
            are_alike &= all(isinstance(each, nn.Module) for each in experts)  # a list may hold None
            if are_alike and not _has_biases(holder, len(experts)):
                yield _Mixture(name, holder, experts)


def _has_biases(holder: nn.Module, count: int) -> bool:
    """Whether it holds a number for each expert, beside the biases of its layers."""
    own = (*holder.parameters(recurse=False), *holder.buffers(recurse=False))
    return any(tuple(each.shape) == (count,) for each in own)


def _watched(mixture: _Mixture) -> Iterator[Any]:
    number = {expert: index for index, expert in enumerate(mixture.experts)}
    inside = {part for expert in mixture.experts for part in expert.modules()}

    def note(name: str, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        tensors = (each for each in (*args, *kwargs.values()) if isinstance(each, Tensor))
        given = next((each for each in tensors if each.is_floating_point()), None)
        if not mixture.is_open or mixture.is_done or given is None or given.ndim < 2:
            return
        if part in number:
            mixture.rows.append((number[part], given.detach().double().flatten(0, -2)))
        elif isinstance(part, nn.Linear) and output.shape == (*given.shape[:-1], len(number)):
            mixture.scores.append((name, given.detach().double().flatten(0, -2), output.detach().flatten(0, -2)))

    def opens(_holder: nn.Module, _args: tuple[Any, ...]) -> None:
        mixture.is_open = True

    def closes(_holder: nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
        mixture.is_open, mixture.is_done = False, True

    yield mixture.holder.register_forward_pre_hook(opens)
    yield mixture.holder.register_forward_hook(closes)
    for name, part in mixture.holder.named_modules():
        if part is not mixture.holder and (part in number or part not in inside):
            yield part.register_forward_hook(partial(note, name), with_kwargs=True)


def _compared(mixture: _Mixture, router: str, tokens: Tensor, scores: Tensor) -> Routed | None:
    """How often each expert is given each of the tokens that the router was given; None where it is given others."""
    if not _FEWEST_TOKENS <= len(tokens) <= _MOST_TOKENS or not mixture.rows:
        return None
    counts = torch.zeros(scores.shape, device=scores.device)
    for number, rows in mixture.rows:
        if rows.shape[-1] != tokens.shape[-1] or len(rows) > _MOST_TOKENS:
            return None
        same = torch.cdist(rows, tokens, p=torch.inf) == 0
        if float(same.any(1).double().mean()) < _MOST:
            return None
        counts[:, number] += same.sum(0)
    beside_others = scores - scores.mean(0)  # where experts choose tokens, or are to get as many each
    pairs = [_best_and_worst(counts, each) for each in (scores, beside_others)]
    return Routed(
        name=mixture.name,
        router=router,
        best=max(float((best > 0).double().mean()) for best, _ in pairs),
        any_one=float((counts > 0).double().mean()),
        worst_oftener=max(float((worst > best).double().mean()) for best, worst in pairs),
        given=next(rows for _, rows in mixture.rows if len(rows)),
    )


def _best_and_worst(counts: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """How often each token goes to the expert of the highest score, and to that of the lowest."""
    best, worst = (at(scores, dim=1).unsqueeze(1) for at in (torch.argmax, torch.argmin))
    return counts.gather(1, best), counts.gather(1, worst)

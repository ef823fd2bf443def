"""Parameters that start at zero and hold each other's gradient at zero."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from nsa_doctor.probes.gradients.influence import Influence
from nsa_doctor.probes.hooks.around_parts import around_parts
from nsa_doctor.probes.internal import tree_leaves, tree_map
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.training import forward_backward

_FROM_ZERO = 0.02


def freed_together(sp: BuiltModule, x: Tensor, candidates: Sequence[tuple[str, nn.Parameter]]) -> list[str]:
    """Of parameters with a gradient of zero, those that are zero and get another when all that are so are moved off it.

    Those of a part that is not used get none even then. The parameters are zero again afterwards.
    """
    zero = [(name, parameter) for name, parameter in candidates if is_zero(parameter)]
    if not zero:
        return []
    generator = torch.Generator().manual_seed(sp.subject.seed)
    with torch.no_grad():
        for _, parameter in zero:
            noise = torch.randn(parameter.shape, generator=generator, device="cpu").to(parameter)
            parameter.copy_(_FROM_ZERO * noise)
    forward_backward(sp, x)
    freed = [(name, p) for name, p in zero if p.grad is not None and not is_zero(p.grad)]
    found = [name for name, _ in Influence(sp, x).among(freed, len(freed))] if freed else []
    with torch.no_grad():
        for _, parameter in zero:
            parameter.zero_()
    return found


@contextmanager
def with_zeros_filled(sp: BuiltModule, x: Tensor) -> Iterator[None]:
    """Parts that are given nothing but zeros, as what is left out comes to, are given numbers until the region ends.

    Zeros that parameters make are no such, nor those of a part that is called again: they are the first of a state.
    """

    def filled(leaf: object) -> object:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            return leaf
        generator = torch.Generator().manual_seed(sp.subject.seed)  # the same in every pass
        return leaf + torch.randn(leaf.shape, generator=generator, device="cpu").to(leaf)

    counts: Counter[str] = Counter()
    with torch.no_grad(), around_parts(sp.module, lambda path: counts.update((path,)), lambda: None):
        sp(x)

    def fill(path: str, _part: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor) and each.is_floating_point()]
        if counts[path] != 1 or not given or not all(not each.requires_grad and is_zero(each) for each in given):
            return None
        return tree_map(filled, (args, kwargs))

    parts = ((path, part) for path, part in sp.module.named_modules() if path)
    handles = [part.register_forward_pre_hook(partial(fill, path), with_kwargs=True) for path, part in parts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def is_zero(values: Tensor) -> bool:
    """Whether it holds zeros alone; a gradient may be sparse."""
    return not bool((values.to_dense() != 0).any())

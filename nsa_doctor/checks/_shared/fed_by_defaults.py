"""Parts that get one vector for every token and input, because arguments of the module's forward are left out."""

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import lengths_for
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.subject.contract import Subject

_SEEDS = (0, 1)


def fed_by_defaults(subject: Subject, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Of these parameters those of parts that get the same whatever comes in, and the arguments that are left out.

    A shift of all keys by one vector comes to nothing in a softmax: what such a part does shows where those are given.
    """
    sp = built(subject)
    parameters = attempt(lambda: list(inspect.signature(sp.module.forward).parameters.values()))
    left_out = [] if isinstance(parameters, Caught) else [each.name for each in parameters if each.default is None]
    if not left_out:
        return [], []
    owners = {name: name.rpartition(".")[0] for name in names}
    with torch.no_grad(), unobserved():
        first, second = (attempt(lambda seed=seed: _given(sp, set(owners.values()), seed)) for seed in _SEEDS)
    if isinstance(first, Caught) or isinstance(second, Caught):
        return [], []
    same = {path for path, given in first.items() if path in second and _is_one(given, second[path])}
    return [name for name, path in owners.items() if path in same], left_out


def _given(sp: BuiltModule, paths: set[str], seed: int) -> dict[str, Tensor]:
    """What each of these parts is given last in a pass with an input of that seed."""
    found: dict[str, Tensor] = {}

    def hear(path: str) -> None:
        def see(_part: nn.Module, given: tuple[object, ...]) -> None:
            for each in given[:1]:
                if isinstance(each, Tensor):
                    found[path] = each.detach().clone()

        handles.append(part_at(sp.module, path).register_forward_pre_hook(see))

    handles: list[torch.utils.hooks.RemovableHandle] = []
    for path in filter(None, paths):
        hear(path)
    try:
        sp(sp.input(lengths_for(sp.subject)[-1], 2, sp.subject.seed + seed))
    finally:
        for handle in handles:
            handle.remove()
    return found


def _is_one(first: Tensor, second: Tensor) -> bool:
    """Whether two inputs give one and the same vector everywhere."""
    if first.ndim < 2 or first.numel() == first.shape[-1] or first.shape != second.shape:
        return False
    vectors = first.flatten(0, -2)
    return torch.equal(first, second) and bool((vectors == vectors[:1]).all())

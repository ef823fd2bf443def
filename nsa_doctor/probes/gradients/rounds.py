"""Parts that run several rounds in one pass of which the last alone is meant to have a gradient."""

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import attempt
from nsa_doctor.core.finding import Note
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule

_LENGTH = 17
_FEWEST_PARTS = 2  # with weights: one projection that is read twice is no round


def rounds_without_gradient(sp: BuiltModule) -> list[str]:
    """Paths of the parts whose earlier answers in a pass get no gradient where their last one does.

    As where a prediction is recycled (AlphaFold 2, supplement 1.10) or a fixed point is looked for. The outermost
    alone.
    """
    was_training = sp.module.training
    found: set[str] = set()
    for mode in sp.subject.modes:  # training may draw their number, and draw one
        sp.module.train(mode == "train")
        found |= _rounds_of_a_pass(sp)
    sp.module.train(was_training)
    return [path for path in sorted(found) if not any(path.startswith(f"{other}.") for other in found)]


def is_within(name: str, paths: Collection[str]) -> bool:
    """Whether a parameter or a part of that name is one of these parts', or one of them."""
    return any(name == path or name.startswith(f"{path}.") for path in paths)


def note_of_rounds(sp: BuiltModule, paths: Collection[str]) -> Note:
    """That gradients were held against what they are not meant to be."""
    some = next(iter(paths))
    return Note(
        message=f"{some} runs several rounds in a pass, and the last alone has a gradient, as is meant where results "
        "are recycled: what it would be of all of them was not asked for",
        where=definition_place(part_at(sp.module, some)),
    )


def _rounds_of_a_pass(sp: BuiltModule) -> set[str]:
    answers: dict[str, list[Tensor]] = {}

    def hear(path: str) -> Callable[[nn.Module, object, object], None]:
        def see(_part: nn.Module, _given: object, answer: object) -> None:
            first = answer[0] if isinstance(answer, (tuple, list)) and answer else answer
            if isinstance(first, Tensor):
                answers.setdefault(path, []).append(first)

        return see

    parts = {path: part for path, part in sp.module.named_modules() if path and _is_block(part)}
    handles = [part.register_forward_hook(hear(path)) for path, part in parts.items()]
    try:
        with unobserved(), torch.enable_grad():
            output = attempt(lambda: sp(sp.input(min(_LENGTH, sp.subject.max_length))))
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(output, Tensor) or not output.requires_grad:
        return set()
    return {path for path, each in answers.items() if len(each) > 1 and _is_last_alone(output, each)}


def _is_block(part: nn.Module) -> bool:
    weighted = [each for each in part.modules() if any(True for _ in each.parameters(recurse=False))]
    return len(weighted) >= _FEWEST_PARTS


def _is_last_alone(output: Tensor, answers: list[Tensor]) -> bool:
    *earlier, last = answers
    if not last.requires_grad or any(each.shape != last.shape for each in earlier):
        return False
    asked = [last, *(each for each in earlier if each.requires_grad)]
    slopes = torch.autograd.grad(output.double().sum(), asked, retain_graph=True, allow_unused=True)
    return slopes[0] is not None and all(each is None for each in slopes[1:])

"""GRD110 gradient-strays-in-bfloat16

Detects: gradients of a model that is converted to bfloat16 which are far from those of the same values in float64, in
every batch, by many times what rounding explains; its outputs may be right.
Matters: a backward that only half precision reaches (a kernel, a branch by dtype, a cast that cuts the graph) is what a
GPU trains with, while tests in float32 are green.
Fix: hold that path to the plain one by its gradients, not by its output alone.

Example:
    # faulty
    if x.dtype == torch.bfloat16:
        state = state.detach()  # to save memory there
    # correct
    state = checkpoint(advance, state, use_reentrant=False)  # saves as much, and keeps the gradient
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import listed
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, NotApplicableError, SubjectFailedError, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.gradients.low_precision import GradientStray, gradient_strays
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.numerics.rounding_budget import twins
from nsa_doctor.subject.contract import Subject

_LENGTH, _NUM_INPUTS = 67, 3
_MOST_BUDGETS = 8.0  # an output may be four off, and a backward pass rounds as often again
_LEAST_SHARE = 0.25  # of the gradient's own size: less trains none the worse


def run(subject: Subject) -> Iterator[Finding]:
    try:
        pair = twins(subject, "bfloat16")
        length = min(_LENGTH, subject.max_length)
        found = _strays_of_all(
            list(gradient_strays(pair, length, subject.seed + index)) for index in range(_NUM_INPUTS)
        )
    except SubjectFailedError as failure:
        raise NotApplicableError("it does not run in bfloat16 and in float64, to compare them") from failure
    wrong = [stray for stray in found if not stray.is_of_output]
    if not wrong:
        return
    worst = max(wrong, key=lambda stray: stray.relative)
    names = [stray.name for stray in wrong]
    message = (
        f"in bfloat16 the gradient of {listed(names)} at S={length} is off by {worst.relative:.0%} of its size in "
    )
    message += f"{_NUM_INPUTS} of {_NUM_INPUTS} batches, {worst.ratio:.2g} times what rounding every parameter and "
    yield Finding(
        message=f"{message}module output does",
        where=_place(pair.low.module, names, {stray.name for stray in found if stray.is_of_output}),
        evidence={"length": length, "relative": worst.relative, "budgets": worst.ratio, "gradients": len(names)},
        repro=command_for(subject, "GRD110"),
    )


def _strays_of_all(batches: Iterator[list[GradientStray]]) -> list[GradientStray]:
    """Those that are far off in every batch: a choice that flips is so in one and not in the next."""
    found: dict[tuple[str, bool], GradientStray] | None = None
    for batch in batches:
        far = {(each.name, each.is_of_output): each for each in batch if _is_far(each)}
        found = far if found is None else {key: each for key, each in found.items() if key in far}
        if not found:
            break
    return list((found or {}).values())


def _is_far(stray: GradientStray) -> bool:
    return not (stray.ratio <= _MOST_BUDGETS or stray.relative <= _LEAST_SHARE)


def _place(root: nn.Module, names: list[str], wrong_outputs: set[str]) -> Place:
    """The innermost module of the subject's own with a wrong gradient inside, whose output's gradient is right."""
    first, places = names[-1].split("."), []
    for end in range(len(first)):
        path = ".".join(first[:end])
        module = attempt(lambda: root.get_submodule(path))  # noqa: B023
        if not isinstance(module, Caught) and not type(module).__module__.startswith("torch."):
            places += [replace(definition_place(module), module=path)] if path not in wrong_outputs else []
    return places[-1] if places else definition_place(root)


class _CutInHalfPrecision(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(x)
        return output.detach() + 0.5 * (output - output.detach()) if output.dtype == torch.bfloat16 else output


def planted(subject: Subject) -> Subject:
    return replace(subject, build=lambda seed: _CutInHalfPrecision(subject.build(seed)))


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD206", "NAN101"),
    explained_by=("GRD101", "FWD304", "NAN103", "NAN104", "NAN105"),
)

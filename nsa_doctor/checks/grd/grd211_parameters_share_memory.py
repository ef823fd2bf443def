"""GRD211 parameters-share-memory

Detects: two parameters that ask for a gradient and hold values in the same memory: weights tied by `.data`, or two
views of one tensor that overlap.
Matters: each gets its own part of the gradient and an optimizer steps both, the second on what the first has changed;
after `.to()` in another dtype or a checkpoint that is loaded they part, and nothing says so.
Fix: tie weights by one Parameter under both names.

Example:
    # faulty
    self.head.weight.data = self.embed.weight.data
    # correct
    self.head.weight = self.embed.weight
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.attribute_lines import line_that_makes
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.internal import memory_of, part_at
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

_MOST_VALUES = 1 << 26


def run(subject: Subject) -> Iterator[Finding]:
    module = built(subject, is_randomised=False).module
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad and p.layout == torch.strided]
    shared = list(_shared(trained))
    if not shared:
        return
    (first, _), (second, parameter), count = shared[0]
    more = f", as do {len(shared) - 1} further pairs" if len(shared) > 1 else ""
    owner, _, name = second.rpartition(".")
    holder = part_at(module, owner)
    line = line_that_makes(module, owner.partition(".")[0] or name)
    place = replace(definition_place(module), module=owner, module_class=type(holder).__name__)
    yield Finding(
        message=f"{first} and {second} are two parameters with {count} of {parameter.numel()} values in the same "
        f"memory{more}: an optimizer steps both, and conversion parts them",
        where=place if line is None else replace(place, file=line.file, line=line.line, function=line.function),
        evidence={"parameters": f"{first},{second}", "num_values": count, "num_pairs": len(shared)},
        repro=command_for(subject, "GRD211"),
    )


Named = tuple[str, nn.Parameter]


def _shared(named: list[Named]) -> Iterator[tuple[Named, Named, int]]:
    """(one, another, how many values of memory both hold) of each parameter that holds what an earlier one does."""
    by_memory: dict[int, list[Named]] = {}
    for each in named:
        if each[1].numel() > 0:
            by_memory.setdefault(memory_of(each[1]), []).append(each)
    for group in by_memory.values():
        num_values = group[0][1].untyped_storage().nbytes() // group[0][1].element_size()
        if len(group) < 2 or num_values > _MOST_VALUES or len({p.dtype for _, p in group}) > 1:
            continue
        marks = torch.zeros(num_values, dtype=torch.bool)
        for index, (name, parameter) in enumerate(group):
            if count := int(_of(marks, parameter).sum()):
                yield next(each for each in group[:index] if _are_both(each[1], parameter)), (name, parameter), count
            _of(marks, parameter).fill_(True)


def _are_both(one: Tensor, other: Tensor) -> bool:
    marks = torch.zeros(one.untyped_storage().nbytes() // one.element_size(), dtype=torch.bool)
    _of(marks, one).fill_(True)
    return bool(_of(marks, other).any())


def _of(marks: Tensor, parameter: Tensor) -> Tensor:
    return marks.as_strided(parameter.shape, parameter.stride(), parameter.storage_offset())


class _Tied(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.copy = nn.Parameter(next(inner.parameters()).data)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(x)
        return output + 0.0 * self.copy.sum()


def planted(subject: Subject) -> Subject:
    return replace(subject, build=lambda seed: _Tied(subject.build(seed)))


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke")

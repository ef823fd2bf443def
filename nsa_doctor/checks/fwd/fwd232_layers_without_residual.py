"""FWD232 layers-without-residual

Detects: one of several layers that attend, of which one part is the only way from the input to the output: with its
    matrices at zero the output is the same for every input.
Matters: such stacks lose rank with every layer, and the gradient with it; they train badly or not at all when deep.
Fix: add what the part is given to what it gives.

Example:
    # faulty
    x = self.norm(self.attend(x))
    # correct
    x = self.norm(x + self.attend(x))
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.only_ways import OnlyWay, has_layers, only_way
from nsa_doctor.probes.hooks.places import definition_place, in_subject
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH = 24


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    if not has_layers(sp.module):
        raise NotApplicableError("it repeats no layer of attention and other parts")
    length = min(_LENGTH, subject.max_length)
    found = only_way(sp, length)
    if found is not None:
        yield Finding(
            message=(
                f"all that the output knows of the input goes through {found.part} of {found.layer_path}: with the "
                f"matrices of that part at zero it is the same for every input at S={length}; no residual leads past it"
            ),
            where=in_subject(replace(definition_place(_running(sp.module, found)), module=found.layer_path), sp.module),
            evidence={"length": length, "part": found.part, "dtype": sp.dtype},
            repro=command_for(subject, "FWD232"),
        )


def _running(root: nn.Module, found: OnlyWay) -> nn.Module:
    """The layer, or what runs the parts of one that is a list of them."""
    path, layer = found.layer_path, found.layer
    while path and isinstance(layer, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
        path = path.rpartition(".")[0]
        layer = part_at(root, path)
    return layer


class _Attention(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mix = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.mix((x @ x.mT).softmax(-1) @ x)
        return output


class _Layer(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention, self.norm = _Attention(dim), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.norm(self.attention(x))
        return output


def planted(subject: Subject) -> Subject:
    dim = subject.width

    class Stacked(nn.Module):
        """Two layers without a residual behind the subject."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.layers = subject.build(subject.seed), nn.ModuleList(_Layer(dim) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            for layer in self.layers:
                output = layer(output)
            return output

    return replace(subject, build=lambda _seed: Stacked(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"))

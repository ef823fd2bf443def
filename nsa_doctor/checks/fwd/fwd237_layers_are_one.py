"""FWD237 layers-are-one

Detects: a list or a row of layers in which one module with parameters stands several times, where neither the names nor
the source of what holds it speak of layers that are shared.
Matters: a model of twelve layers learns the parameters of one; checkpoints, shapes and the loss look right.
Fix: build each layer: `nn.ModuleList([Layer() for _ in range(n)])`; for layers that are to be shared, say so there.

Example:
    # faulty
    self.layers = nn.ModuleList([Layer(dim)] * depth)
    # correct
    self.layers = nn.ModuleList([Layer(dim) for _ in range(depth)])
"""

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.attribute_lines import line_that_makes
from nsa_doctor.probes.hooks.places import definition_place, in_subject
from nsa_doctor.subject.contract import Subject

_ON_PURPOSE = re.compile(
    r"(?<![a-z])(shared?|sharing|tied?|ties|tying|recurren\w*|universal|reus\w+|recycl\w+|unroll\w*)(?![a-z])",
    re.IGNORECASE,
)


def run(subject: Subject) -> Iterator[Finding]:
    root = subject.build(subject.seed)
    for path, container in root.named_modules():
        if not isinstance(container, (nn.ModuleList, nn.Sequential)):
            continue
        times = Counter(map(id, container))
        repeated = [part for part in container if times[id(part)] > 1 and any(True for _ in part.parameters())]
        owner, _, name = path.rpartition(".")
        holder = root.get_submodule(owner)
        if not repeated or _ON_PURPOSE.search(path) or _is_on_purpose(holder):
            continue
        line = line_that_makes(holder, name) if name else None
        place = definition_place(holder)
        yield Finding(
            message=f"{type(repeated[0]).__name__} stands {times[id(repeated[0])]} times among the {len(container)} of "
            f"{path or subject.name} as one and the same module",
            where=in_subject(place if line is None else replace(place, **vars(line)), root),
            evidence={"container": path, "times": times[id(repeated[0])]},
            repro=command_for(subject, "FWD237"),
        )
        return


def _is_on_purpose(holder: nn.Module) -> bool:
    """Whether the source of its class, or the names of what it holds, speak of layers that are shared."""
    source = attempt(lambda: inspect.getsource(type(holder)))
    said = " ".join(vars(holder)) + ("" if isinstance(source, Caught) else source)
    return _ON_PURPOSE.search(said) is not None


def planted(subject: Subject) -> Subject:
    class Stack(nn.Module):
        """The subject, and three layers that are one."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.layers = subject.build(subject.seed), nn.ModuleList([nn.Linear(4, 4)] * 3)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return output

    return replace(subject, build=lambda _seed: Stack(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted)

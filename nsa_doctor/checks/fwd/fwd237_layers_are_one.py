"""FWD237 layers-are-one

Detects: a list or a row of layers in which one module with weights stands in every place, where neither the names nor
the source of what holds it speak of layers that are shared; a norm of batches with running statistics that stands
in several. One that a function makes is a note.
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
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.attribute_lines import line_that_makes
from nsa_doctor.probes.hooks.places import definition_place, in_subject
from nsa_doctor.probes.internal import NORMS_BY_BATCH, part_at
from nsa_doctor.subject.contract import Subject

_ON_PURPOSE = re.compile(  # as words of a name, and with a capital inside one
    r"(?<![a-z])(?i:shar(e|es|ed|ing)|ties?|tied|tying|recurren\w*|universal|reus\w+|recycl\w+|unroll\w*|loop(s|ed|ing)"
    r"|same|albert|iterat\w+|cyclic)(?![a-z])"
    r"|Shar(e|es|ed|ing)|Tied|Tying|Recurren|Universal|Reus|Recycl|Unroll|Looped|Albert|Iterat|Cyclic"
)


def run(subject: Subject) -> Iterator[Finding | Note]:
    root = subject.build(subject.seed)
    for path, container in root.named_modules():
        if not isinstance(container, (nn.ModuleList, nn.Sequential)):
            continue
        part, times = _repeated(list(container))
        if part is None:
            continue
        owner, _, name = path.rpartition(".")
        holder = part_at(root, owner)
        if _ON_PURPOSE.search(f"{path} {type(holder).__name__}") or _is_on_purpose(holder):
            continue
        line = line_that_makes(holder, name) if name else None
        place = definition_place(holder)
        message = f"{type(part).__name__} stands {times} times in {path or subject.name}: one and the same module"
        if isinstance(part, NORMS_BY_BATCH):
            message += ", whose running statistics are then of several layers and of none"
        if line is None:  # made by a function, whose words are not known
            yield Note(message=message, where=place)
            continue
        yield Finding(
            message=message,
            where=in_subject(replace(place, **vars(line)), root),
            evidence={"container": path, "times": times},
            repro=command_for(subject, "FWD237"),
        )
        return


def _repeated(parts: Sequence[nn.Module | None]) -> tuple[nn.Module | None, int]:
    """A part with matrices that stands in every place, or a norm of batches in several; None where there is none."""
    if len(parts) > 1 and all(part is parts[0] for part in parts) and _has_matrix(parts[0]):
        return parts[0], len(parts)
    norms = [id(part) for part in parts if isinstance(part, NORMS_BY_BATCH) and part.running_mean is not None]
    part = next((part for part in parts if norms.count(id(part)) > 1), None)
    return part, norms.count(id(part))


def _has_matrix(part: nn.Module | None) -> bool:
    """Whether it has weights of a layer, not those of an activation alone; a list may hold None for a part left out."""
    return part is not None and any(each.ndim > 1 for each in part.parameters())


def _is_on_purpose(holder: nn.Module) -> bool:
    """Whether the source of its class, or the names of what it holds, speak of layers that are shared."""
    source = attempt(lambda: inspect.getsource(type(holder)))
    is_silent = isinstance(source, Caught) or type(holder).__module__.startswith("torch.")
    said = " ".join(vars(holder)) + ("" if is_silent else str(source))
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

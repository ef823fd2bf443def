"""FWD237 layers-are-one

Detects: a list or a row of layers in which one module with weights stands in every place, or in several because a line
    multiplies a list of it, where neither the names nor the source of what holds it speak of layers that are shared; a
    norm of batches with running statistics that stands in several. What is kept as an attribute of its own as well, or
    stands in one branch of a condition beside another that builds each, is left alone. Where no line shows how it came
    there, as where a list is handed in, it is a note; so is one that is made first, as of a head, and given another
    input each time.
Matters: a model of twelve layers learns the parameters of one; checkpoints, shapes and the loss look right.
Fix: build each layer: `nn.ModuleList([Layer() for _ in range(n)])`, or `copy.deepcopy(layer)` for each; for layers that
    are to be shared, say so there.

Example:
    # faulty
    self.layers = nn.ModuleList([Layer(dim)] * depth)
    # correct
    self.layers = nn.ModuleList([Layer(dim) for _ in range(depth)])
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.attribute_lines import line_that_makes
from nsa_doctor.probes.hooks.meant_sharing import is_meant
from nsa_doctor.probes.hooks.multiplied_parts import is_handed_in, multiplied_part
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import definition_place, in_subject
from nsa_doctor.probes.internal import NORMS_BY_BATCH, part_at
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.parts_apart import is_given_apart
from nsa_doctor.probes.model.repeated_parts import repeated_part
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding | Note]:
    root = subject.build(subject.seed)
    for path, container in root.named_modules():
        found = repeated_part(container)
        if found is None:
            continue
        kinds, (owner, _, name) = (type(container), type(found.part)), path.rpartition(".")
        holder = part_at(root, owner)
        many = multiplied_part(subject, path, kinds[1].__name__)
        made = line_that_makes(holder, name) if name else None
        is_plain = found.is_plain or (many is not None and many.is_list)
        if not is_plain or (many is not None and (many.is_kept or many.is_chosen)):
            continue
        line = many.line if many is not None else None if made is None or is_handed_in(made) else made
        beside = [each for each in (made, *(many.around if many is not None else ())) if each is not None]
        if is_meant(holder, path, kinds, beside, many.names if many is not None else ()):
            continue
        what = "module" if isinstance(found.part, nn.Module) else "tensor"
        if line is not None and (many is None or many.is_held) and _is_apart(subject, path):
            line = None
        message = f"{kinds[1].__name__} stands {found.times} times in {path or subject.name}: one and the same {what}"
        if isinstance(found.part, NORMS_BY_BATCH):
            message += ", whose running statistics are then of several layers and of none"
        if line is None:
            yield Note(message=message, where=definition_place(holder))
            continue
        yield Finding(
            message=message,
            where=in_subject(replace(definition_place(holder), module=owner, **vars(line)), root),
            evidence={"container": path, "times": found.times},
            repro=command_for(subject, "FWD237"),
        )
        return


def _is_apart(subject: Subject, path: str) -> bool:
    """Whether the part in that container is given another input in each place, as a head of several levels is."""
    with unobserved():
        sp = attempt(lambda: built(subject))
    if isinstance(sp, Caught):
        return False
    found = repeated_part(part_at(sp.module, path))
    return found is not None and isinstance(found.part, nn.Module) and is_given_apart(sp, found.part, found.times)


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

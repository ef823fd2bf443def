"""GRD203 parameter-not-registered

Detects: a trainable tensor that the output is computed from and that `module.parameters()` does not list.
Matters: no optimizer moves it, no checkpoint holds it, and `.to(device)` leaves it behind.
Fix: hold it as an `nn.Parameter` attribute; hold modules in `nn.ModuleList` or `nn.ModuleDict`, not in a plain list.

Example:
    # faulty
    self.branches = [nn.Linear(dim, dim) for _ in range(3)]
    # correct
    self.branches = nn.ModuleList(nn.Linear(dim, dim) for _ in range(3))
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import MOST_FINDINGS, lengths_for, placed, watched_pass
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import counted
from nsa_doctor.probes.gradients.detached_params import PathWatch
from nsa_doctor.probes.hooks.attribute_lines import line_that_makes
from nsa_doctor.probes.hooks.tensor_owners import Holder, holders, roots_of
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.subject.contract import Subject

_MOST_NAMES = 3


def run(subject: Subject) -> Iterator[Finding]:
    sp = built(subject, mode="train")
    for length in lengths_for(subject):
        unlisted, watch = _unlisted(sp, length)
        if not unlisted:
            continue
        held = {id(root): holder for holder in holders(sp.module) for root in roots_of(holder.tensor)}
        names = {id(parameter): name for name, parameter in sp.module.named_parameters()}
        again_unlisted = {id(tensor) for tensor in _unlisted(sp, length)[0]}
        groups: dict[str, list[Tensor]] = {}
        for tensor in unlisted:
            holder = held.get(id(tensor))
            # What hangs on no module and is made for this call alone may be a means of computing, not a weight.
            if holder or id(tensor) in again_unlisted or isinstance(tensor, nn.Parameter):
                groups.setdefault(holder.module_class if holder else "", []).append(tensor)
        for tensors in list(groups.values())[:MOST_FINDINGS]:
            owner = names.get(id(tensors[0]), ".").rpartition(".")[0]
            seen = held[id(tensors[0])].tensor if id(tensors[0]) in held else tensors[0]
            place = placed(watch.place_of(seen), [f"{owner}."], sp.module)
            known_as = f"as {names[id(tensors[0])]}, " if id(tensors[0]) in names else ""
            where = f"kept outside the module and used in {place.module_text}"
            where = where if id(tensors[0]) in again_unlisted else f"{known_as}created again in every forward pass"
            yield _finding(sp, length, [held.get(id(each)) for each in tensors], place, where)
        if groups:
            return


def _unlisted(sp: BuiltModule, length: int) -> tuple[list[Tensor], PathWatch]:
    """Leaves that the loss would send a gradient to, apart from the input and the parameters there were before."""
    listed = list(sp.module.parameters())
    done, watch = watched_pass(sp, sp.input(length), [])
    known = {id(done.x), *(id(parameter) for parameter in listed)}
    leaves = [] if watch.deliveries is None else watch.deliveries.leaves
    return [leaf for leaf in leaves if id(leaf) not in known], watch


def _finding(sp: BuiltModule, length: int, held: Sequence[Holder | None], used: Place, where: str) -> Finding:
    found = sorted((each for each in held if each is not None), key=lambda each: each.module)
    ways = [f"{each.module}.{each.way}".removeprefix(".") for each in found]
    count = counted(len(held), "trainable tensor")
    if found:
        where = _held_by(sp.module, found, ways)
        used = replace(used, module=found[0].module, module_class=found[0].module_class)
    return Finding(
        message=f"{count}, {where}, {'is' if len(held) == 1 else 'are'} not among the module's parameters; the "
        f"output at S={length} is computed from {'it' if len(held) == 1 else 'them'}",
        where=used,
        evidence={"length": length, "num_tensors": len(held), "attributes": ",".join(ways)},
        repro=command_for(sp.subject, "GRD203"),
    )


def _held_by(root: nn.Module, found: Sequence[Holder], ways: Sequence[str]) -> str:
    """Which attributes hold them, and the line that makes the first."""
    names = list(dict.fromkeys(each.attribute for each in found))
    attributes = f"attribute {names[0]}" if len(names) == 1 else f"attributes {_few(names)}"
    made = line_that_makes(part_at(root, found[0].module), found[0].attribute)
    at = f", made at {PurePath(made.file).name}:{made.line}" if made is not None else ""
    return f"held by the {attributes} of {found[0].module_class} ({_few(ways)}){at}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")


def planted(subject: Subject) -> Subject:
    scale = torch.ones((), requires_grad=True)

    def scaled(module: nn.Module, x: Tensor) -> Tensor:
        return subject.forward(module, x) * scale

    return replace(subject, forward=scaled)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke", commands=("anomaly",))

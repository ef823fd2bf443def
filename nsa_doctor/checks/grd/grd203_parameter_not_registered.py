"""GRD203 parameter-not-registered

Detects: a trainable tensor that the output is computed from and that `module.parameters()` does not list.
Matters: no optimizer moves it, no checkpoint holds it, and `.to(device)` leaves it behind.
Fix: hold it as an `nn.Parameter` attribute; hold modules in `nn.ModuleList` or `nn.ModuleDict`, not in a plain list.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.check import Check
from nsa_doctor.checks.unlearned import MOST_FINDINGS, lengths_for, placed, watched_pass
from nsa_doctor.finding import Finding
from nsa_doctor.measurement import Place
from nsa_doctor.probes.cuts import PathWatch
from nsa_doctor.probes.holders import Holder, holders, roots_of
from nsa_doctor.probes.specimen import Specimen, specimen
from nsa_doctor.repro import again
from nsa_doctor.subject import Subject


def run(subject: Subject) -> Iterator[Finding]:
    sp = specimen(subject, mode="train")
    for length in lengths_for(subject):
        unlisted, watch = _unlisted(sp, length)
        if not unlisted:
            continue
        held = {id(root): holder for holder in holders(sp.module) for root in roots_of(holder.tensor)}
        again_unlisted = {id(tensor) for tensor in _unlisted(sp, length)[0]}
        groups: dict[tuple[str, str], list[Tensor]] = {}
        for tensor in unlisted:
            holder = held.get(id(tensor))
            # What hangs on no module and is made for this call alone may be a means of computing, not a weight.
            if holder or id(tensor) in again_unlisted or isinstance(tensor, nn.Parameter):
                groups.setdefault((holder.module, holder.attribute) if holder else ("", ""), []).append(tensor)
        for tensors in list(groups.values())[:MOST_FINDINGS]:
            place = placed(watch.place_of(tensors[0]), [""], sp.module)
            yield _finding(subject, length, tensors, held, place, id(tensors[0]) in again_unlisted)
        if groups:
            return


def _unlisted(sp: Specimen, length: int) -> tuple[list[Tensor], PathWatch]:
    """Leaves that the loss would send a gradient to, apart from the input and the parameters."""
    done, watch = watched_pass(sp, sp.input(length), [])
    listed = {id(parameter) for parameter in sp.module.parameters()} | {id(done.x)}
    leaves = [] if watch.deliveries is None else watch.deliveries.leaves
    return [leaf for leaf in leaves if id(leaf) not in listed], watch


def _finding(
    subject: Subject, length: int, tensors: list[Tensor], held: dict[int, Holder], used: Place, is_kept: bool
) -> Finding:
    holder = held.get(id(tensors[0]))
    ways = [held[id(tensor)].way for tensor in tensors if id(tensor) in held]
    count = f"{len(tensors)} trainable tensor{'' if len(tensors) == 1 else 's'}"
    where = f"kept outside the module, used in {used.module_text}" if is_kept else "made anew in every forward pass"
    if holder:
        shown = ", ".join(sorted(ways)[:3]) + (", …" if len(ways) > 3 else "")
        owner = f"{holder.module} ({holder.module_class})" if holder.module else holder.module_class
        where = f"held by the attribute {holder.attribute} of {owner} ({shown})"
        used = replace(used, module=holder.module, module_class=holder.module_class)
    return Finding(
        message=f"{count}, {where}, {'is' if len(tensors) == 1 else 'are'} not among the module's parameters; the "
        f"output at S={length} is computed from {'it' if len(tensors) == 1 else 'them'}",
        where=used,
        evidence={"length": length, "num_tensors": len(tensors), "attributes": ",".join(sorted(ways))},
        repro=again(subject, "GRD203"),
    )


def planted(subject: Subject) -> Subject:
    scale = torch.ones((), requires_grad=True)

    def scaled(module: nn.Module, x: Tensor) -> Tensor:
        return subject.forward(module, x) * scale

    return replace(subject, forward=scaled)


CHECK = Check(doc=__doc__, run=run, planted=planted, profile="smoke")

"""FWD224 long-sequence-goes-wrong

Detects: a sequence longer than other checks look at (2,093, 4,141 or 8,237 tokens, as counted work allows) at whose
beginning a shorter one has another output, whose end changes what comes before it, whose last token no longer reads
those just before it, or not in their order, or reads some far away beyond a window, or whose positions repeat where
those of a shorter one are all different.
Matters: tables of positions end, indices of blocks overflow and numbers of half precision run out where no test looks.
Fix: look for what is as long as a table, counted in eight or sixteen bits, or chosen by the length of the sequence.

Example:
    # faulty
    x = x + self.table[positions.clamp(max=len(self.table) - 1)]  # all later tokens stand at the last place
    # correct
    if x.shape[1] > len(self.table):
        raise ValueError(f"at most {len(self.table)} tokens, got {x.shape[1]}")
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import departure_finding
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.probes.numerics.long_sequence import Fault, faults, longest_affordable, why_none_affordable
from nsa_doctor.subject.contract import Subject

_ANOTHER_SEED = 31337


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    affordable = longest_affordable(sp)
    if affordable is None:
        raise NotApplicableError(why_none_affordable(subject))
    found = next(faults(sp, *affordable), None)
    if found is None:
        return
    other = comparable_module(replace(subject, seed=subject.seed + _ANOTHER_SEED))
    if any((each.departure is None) == (found.departure is None) for each in faults(other, *affordable)):
        yield _finding(sp, *affordable, found)


def _finding(sp: BuiltModule, length: int, rows: int, found: Fault) -> Finding:
    subject, message = sp.subject, f"at S={length}, longer than is looked at elsewhere, {found.words}"
    if found.departure is None or found.other is None:
        place, evidence = found.place or definition_place(sp.module), {"length": length}
        repro = command_for(subject, "FWD224")
        return Finding(code="FWD224", message=message, where=place, evidence=evidence, repro=repro)
    x, other = sp.input(length, rows), found.other
    kept = {length: found.kept, other.shape[1]: found.kept}
    last, last_other = x[-1:], other[-1:]
    divergence = first_divergence(sp, lambda: sp(last), lambda: sp(last_other), kept)
    if not divergence.operation:  # then it is for the row beside it
        divergence = first_divergence(sp, lambda: sp(x), lambda: sp(other), {**kept, rows: -1})
    return departure_finding(subject, "FWD224", message, divergence, found.departure, length=length)


def planted(subject: Subject) -> Subject:
    def looks_ahead_in_long_ones(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output + output.roll(-1, 1) if x.shape[1] > 2048 else output

    return replace(subject, forward=looks_ahead_in_long_ones)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD201", "FWD202", "FWD206", "NAN101"),
    explained_by=("FWD201", "FWD202"),
    priority=475,
    unless=("bidirectional", "stochastic"),
)

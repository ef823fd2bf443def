"""DEC104 reads-differ-from-formula

Detects: decoding steps that read another number of keys than the method says, in some branch.
Matters: what is not read is not attended to; what is read beyond it is time and memory traffic for nothing.
Fix: count at step t max(0, (t+1-l)//d+1) compressed keys, the chosen blocks up to t, and min(w, t+1) in the window.

Example:
    # faulty
    window = cache.k[:, max(0, t - w) : t + 1]  # w + 1 keys
    # correct
    window = cache.k[:, max(0, t - w + 1) : t + 1]
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.choice import chosen
from nsa_doctor.probes.attention.decoding import lengths_to_decode
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import Rules, rules_of


def run(subject: Subject) -> Iterator[Finding]:
    cache_reads, rules = subject.cache_reads, rules_of(subject)
    assert cache_reads is not None
    sp = comparable_module(subject)
    x = sp.input(lengths_to_decode(subject)[0], 2)
    reads = ask("decoding", lambda: cache_reads(sp.module, x.clone()), sp.module)
    due = _due(sp, x, rules)
    for branch, counted in reads.items():
        if branch not in ("compressed", "selected", "sliding"):
            continue
        wrong = [
            (t, row, group, int(counted[row, group, t]), wanted)
            for t, row, group in _each(counted)
            if (wanted := due[branch].get((row, t, group), due[branch].get((0, t, 0)))) is not None
            and int(counted[row, group, t]) != wanted
        ]
        if wrong:
            t, row, group, number, wanted = wrong[0]
            yield Finding(
                message=f"{branch}: {len(wrong)} of {counted.numel()} steps read another number of keys than the "
                f"equations require; token {t}, row {row}, group {group} reads {number} where {wanted} are due",
                where=origin(subject, sp.module, lambda branch=branch: cache_reads(sp.module, x.clone()), branch),
                evidence={"branch": branch, "token": t, "reads": number, "due": wanted, "steps": len(wrong)},
                repro=command_for(subject, "DEC104"),
            )


def _each(counted: Tensor) -> Iterator[tuple[int, int, int]]:
    rows, groups, steps = counted.shape
    return ((t, row, group) for t in range(steps) for row in range(rows) for group in range(groups))


def _due(sp: BuiltModule, x: Tensor, rules: Rules) -> dict[str, dict[tuple[int, int, int], int]]:
    """Keys due by (row, t, group); (0, t, 0) stands for all where they are the same for all."""
    steps = range(x.shape[1])
    selected: dict[tuple[int, int, int], int] = {}
    if sp.subject.choose is not None:
        rows = list(chosen(sp, x).rows())
        selected = {(row.row, row.t, row.group): len(rules.readable(row.blocks, row.t)) for row in rows}
    else:
        all_fit = (t for t in steps if len(rules.candidates(t)) <= rules.n_sel)
        selected = {(0, t, 0): t + 1 for t in all_fit}
    return {
        "compressed": {(0, t, 0): len(rules.visible(t)) for t in steps},
        "selected": selected,
        "sliding": {(0, t, 0): len(rules.window(t)) for t in steps},
    }


def planted(subject: Subject) -> Subject:
    cache_reads = subject.cache_reads
    assert cache_reads is not None

    def faulty(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
        return {branch: counted + 1 for branch, counted in cache_reads(module, x).items() if branch == "sliding"}

    return replace(subject, cache_reads=faulty)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("cache_reads",), blocked_by=("SEL101", "SEL107"))

"""What a policy notices of mutants of the subject's own source, in words and rows that every format uses."""

from collections.abc import Iterator
from typing import get_args

from nsa_doctor.core.proof import COUNTED, Fate, MutantFate, Proof
from nsa_doctor.core.text import counted, joined, numbers

_WORDS = {
    "raises": "raise at once",
    "same": "compute the same",
    "other order": "compute the same with parameters exchanged or negated",
    "other parameters": "have other parameters",
}
_MOST_FILES = 3


def share(proof: Proof) -> str:
    """`12 of 20 mutants noticed (60 %, 95 % interval 39 to 78 %), 7 missed, 1 unknown`."""
    noticed = proof.noticed
    if not noticed.total:
        return f"no mutant was tried: {proof.reason}"
    low, high = 100 * proof.noticed_low, 100 * proof.noticed_high
    text = f"{noticed.hits} of {counted(noticed.total, 'mutant')} noticed ({100 * noticed.rate:.0f} %, "
    text += f"95 % interval {low:.0f} to {high:.0f} %), {proof.number('missed')} missed"
    return text + (f", {proof.number('unknown')} unknown" if proof.number("unknown") else "")


def uncounted(proof: Proof) -> str:
    """What does not count, and why there are fewer than asked for; nothing for nothing."""
    rest = [fate for fate in get_args(Fate) if fate not in COUNTED and proof.number(fate)]
    said = [f"{proof.number(fate)} that {_WORDS[fate]}" for fate in rest]
    text = f"not counted: {joined(said)}" if said else ""
    short = proof.reason if proof.noticed.total else ""
    return "; ".join(part for part in (text, short) if part)


def terms(proof: Proof) -> str:
    """Where a mutant had to give something else, and among how many it was drawn."""
    if not proof.files:
        return ""
    files = ", ".join(proof.files[:_MOST_FILES])
    files += f" and {len(proof.files) - _MOST_FILES} more files" if len(proof.files) > _MOST_FILES else ""
    lengths = f"compared at S={numbers(proof.lengths)} beyond rounding in {proof.dtype}, {joined(proof.modes)}"
    return f"{counted(proof.candidates, 'candidate')} in {files}, seed {proof.seed}; {lengths} ({proof.seconds:.0f} s)"


def unnoticed(proof: Proof) -> Iterator[MutantFate]:
    """Each mutant that changes something and ended in no NO-GO: the missed, then the unknown."""
    yield from (*proof.those("missed"), *proof.those("unknown"))


def proof_lines(proof: Proof) -> Iterator[tuple[str, str]]:
    """(label, text) for a terminal: the share, its terms, and every mutant that was not noticed."""
    for index, text in enumerate(filter(None, (share(proof), uncounted(proof), terms(proof)))):
        yield "" if index else "mutants", text
    for mutant in unnoticed(proof):
        yield mutant.fate, f"{mutant.file}:{mutant.line} ({mutant.kind})"
        yield "", f"- {mutant.before}"
        yield "", f"+ {mutant.after}"
        yield "", f"changes {mutant.changed}" + (f"; {mutant.by}" if mutant.by else "")

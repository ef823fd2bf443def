"""Losses that ask for tokens which were read: GRD207's question of each cross-entropy that a loss adds up."""

from collections.abc import Iterator

from nsa_doctor.checks._shared.unlearned import ordinary_input
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.known_targets import KnownTargets, known_targets
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

_SEEDS = 2


def of_known_tokens(subject: Subject, length: int, rows: int) -> Iterator[Finding]:
    """The first cross-entropy of the subject's loss whose targets its logits have read, in each of two batches."""
    sp = built(subject, mode="train")
    batches = [ordinary_input(sp, length, rows, subject.seed + seed) for seed in range(_SEEDS)]
    found, again = (list(known_targets(sp, batch)) for batch in batches)
    for each in found:
        if each in again:
            yield Finding(
                message=f"{_words(each)}, at S={length}",
                where=in_subject(each.place, sp.module),
                evidence={"length": length, "shift": each.shift, "read": each.read},
                repro=command_for(subject, "GRD207"),
            )
            return


def _words(found: KnownTargets) -> str:
    asked = f"a cross-entropy at position t has the token at t{found.shift:+d} for its target"
    if found.wraps:
        return f"{asked}, and behind the last token comes the first"
    return f"{asked}, of logits that have read those up to t{found.read:+d}"

"""FWD281 half-of-a-cosine

Detects: a product of rows that were divided by their lengths with rows that were not, of which a softmax, a choice or
    a loss is made, or which a temperature scales: queries and keys, two towers of a contrastive loss, answers and a
    table of items. Of a projection by `nn.Linear` it says nothing.
Matters: a cosine is meant, and the length of the other row counts as much as its direction: items win by their length,
    and the temperature is no longer that of numbers between -1 and 1.
Fix: divide the other side by its length too, as in `F.normalize(self.items.weight, dim=-1)`.

Example:
    # faulty
    scores = 12.0 * F.normalize(session, dim=-1) @ self.items.weight.t()
    # correct
    scores = 12.0 * F.normalize(session, dim=-1) @ F.normalize(self.items.weight, dim=-1).t()
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn
from torch.nn.functional import normalize

from nsa_doctor.checks._shared.every_call import first_seen_in_calls
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.half_cosines import half_cosines
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    seen = first_seen_in_calls(subject, half_cosines)
    if seen is None:
        return
    asked, each = seen
    yield Finding(
        message=f"a product in {asked.name} ({each.use}) is of rows of length one and of {each.other}, whose rows are "
        f"{each.least:.3g} to {each.most:.3g} long: half of a cosine",
        where=in_subject(each.place, asked.sp.module),
        evidence={"call": asked.name, "least": each.least, "most": each.most, "other": each.other},
        repro=command_for(subject, "FWD281"),
    )


def planted(subject: Subject) -> Subject:
    def alike(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        scores = normalize(output, dim=-1) @ output.transpose(1, 2)
        return output + 0.01 * scores.tril().softmax(-1) @ output

    return replace(subject, forward=alike)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102"))

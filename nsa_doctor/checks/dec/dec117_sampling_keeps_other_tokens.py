"""DEC117 sampling-keeps-other-tokens

Detects: a function of the subject's own that by its name filters logits or draws tokens (`top_p`, `top_k`, `min_p`, a
    repetition penalty, a temperature) and keeps others than it says, on logits that are made up: likelier ones are
    removed, none is left, or far more or fewer are kept than the number asks for.
Matters: every text that is sampled is drawn from another distribution, and no loss shows it.
Fix: sort in falling order, remove where the sum of all before a token is above p, and bring the mask back to where the
    tokens were before sorting.

Example:
    # faulty
    removed = cumulative > 1 - p
    # correct
    removed = cumulative - probs > p
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.language.deciding_line import deciding_place
from nsa_doctor.probes.language.kept_tokens import OtherTokens, other_tokens
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    sp = built(subject, mode="eval", is_randomised=False)
    found, num_examined = other_tokens(sp.module, subject.packages, subject.seed)
    if not num_examined:
        raise NotApplicableError("it has no function of its own that filters logits or draws tokens")
    for each in found:
        yield _finding(subject, sp.module, each)


def _finding(subject: Subject, module: nn.Module, each: OtherTokens) -> Finding:
    argument = each.function.signature.numbers[each.kind].name
    return Finding(
        message=f"{each.function.name} with {argument} = {each.number:.3g} {each.text}",
        where=deciding_place(each, module),
        evidence={"function": each.function.name, "argument": argument, "value": each.number},
        repro=command_for(subject, "DEC117"),
    )


def planted(subject: Subject) -> Subject:
    class Sampler(nn.Module):
        """Keeps what is left beside p."""

        def top_p(self, logits: Tensor, p: float = 0.9) -> Tensor:
            ordered, places = logits.sort(-1, descending=True)
            probs = ordered.softmax(-1)
            removed = probs.cumsum(-1) - probs > 1 - p
            return logits.masked_fill(removed.scatter(-1, places, removed), float("-inf"))

    def build(seed: int) -> nn.Module:
        module = subject.build(seed)
        module.sampler = Sampler()
        return module

    return replace(subject, build=build)


CHECK = Check(doc=__doc__, run=run, planted=planted)

"""FWD239 logits-start-too-large

Detects: a fresh model of tokens whose cross-entropy against targets drawn evenly is more than three times ln(V), over
three seeds, with logits whose standard deviation over the vocabulary is above 4. Where the output layer is tied to the
embedding, which many initialise with a standard deviation of 1, that is a note.
Matters: before it has seen a token the model is sure of some and wrong; the first steps unlearn that with gradients of
almost one-hot errors, which clipping and warm-up hide and a large learning rate does not survive.
Fix: initialise the output layer with a standard deviation of about 1/sqrt(fan_in) or 0.02, after a final norm.

Example:
    # faulty
    nn.init.normal_(self.head.weight, std=dim**-0.05)
    # correct
    nn.init.normal_(self.head.weight, std=dim**-0.5)
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.first_logits import FirstLogits, first_logits
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.weight_origin import origin_of
from nsa_doctor.subject.contract import Subject

_SEEDS = 3
_WIDE = 1.5  # times the usual standard deviation of weights: they are at fault, and what writes them


def run(subject: Subject) -> Iterator[Finding | Note]:
    if subject.input != "tokens":
        raise NotApplicableError("it takes embeddings, not tokens")
    found = FirstLogits.mean(first_logits(_fresh(subject, more)) for more in range(_SEEDS))
    if not found.are_too_large:
        return
    origin = origin_of(subject, found.layer.name)
    if not origin.is_drawn:
        raise NotApplicableError(
            "the weights of its output layer are not drawn, but come from elsewhere, as trained ones"
        )
    root = _fresh(subject, 0).module
    if found.layer.is_tied:
        yield Note(message=found.said(), where=in_subject(found.layer.place, root))
        return
    place = origin.place if origin.place and found.weight > _WIDE * found.usual else found.layer.place
    yield Finding(
        message=found.said(),
        where=in_subject(place, root),
        evidence={"loss": found.loss, "std": found.spread, "weight_std": found.weight, "usual_std": found.usual},
        repro=command_for(subject, "FWD239"),
    )


def _fresh(subject: Subject, more: int) -> BuiltModule:
    return built(replace(subject, seed=subject.seed + more), is_randomised=False)


def planted(subject: Subject) -> Subject:
    class Loud(nn.Module):
        """The subject, and one layer more whose weights are far too large."""

        def __init__(self, seed: int) -> None:
            super().__init__()
            self.inner, self.head = subject.build(seed), nn.Linear(subject.width, subject.width, bias=False)
            nn.init.normal_(self.head.weight, std=10.0)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(subject.forward(self.inner, x))
            return logits

    return replace(subject, build=Loud, forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "NAN101"))

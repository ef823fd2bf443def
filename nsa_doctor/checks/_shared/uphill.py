"""A training loop whose first step goes along the gradients, and not against them."""

import inspect
from collections.abc import Iterator

from torch.nn.functional import cosine_similarity

from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.model.begun_loop import BegunLoop
from nsa_doctor.probes.model.stepping import Step
from nsa_doctor.subject.contract import Subject

_CLEARLY = 0.2  # as a cosine: weight decay may go along a gradient, and further than it


def uphill(subject: Subject, length: int) -> Iterator[Finding]:
    """The finding of GRD206 where the first step of a loop, which has a rate of its own, goes along the gradients."""
    begun = BegunLoop.of(subject)
    batches = begun.batches(length, 0)
    first = begun.step(batches, subject.seed)
    along = _alignment(first)
    climbing = [name for name, cosine in along.items() if cosine > _CLEARLY]
    if not first.steppers or 2 * len(climbing) <= len(along):
        return
    loss = begun.step(batches, subject.seed).loss
    if loss > first.loss:
        is_own = [each for each in first.steppers if not inspect.unwrap(each).__module__.startswith("torch.")]
        yield Finding(
            message=f"the first step moves {len(climbing)} of {len(along)} parameters along their gradients, and the "
            f"loss on the same batches rises from {first.loss:.6g} to {loss:.6g} at S={length}",
            where=begun.place_of(is_own[0]) if is_own else first.place,
            evidence={"length": length, "loss": first.loss, "climb": loss - first.loss},
            repro=command_for(subject, "GRD206"),
        )


def _alignment(step: Step) -> dict[str, float]:
    """The cosine between what a step adds to each parameter and its gradient, of those that it moves."""
    found: dict[str, float] = {}
    for name, gradient in step.gradients.items():
        if name in step.moved():
            change = (step.after[name].double() - step.before[name].double()).flatten()
            found[name] = float(cosine_similarity(change, gradient.double().flatten(), dim=0))
    return found

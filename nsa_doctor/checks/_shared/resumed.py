"""A training loop that goes on beside one that was restored from its snapshot."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.stepped import differing
from nsa_doctor.checks._shared.unlearned import listed
from nsa_doctor.core.errors import Caught, NotComparableError, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.method_calls import calls_of
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.begun_loop import BegunLoop, tensors_by_path
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.model.stepping import Step
from nsa_doctor.subject.contract import Subject

_BEFORE, _AFTER, _HELD_OUT = (2, 6), 2, 5
_TOLERANCE = 1e-4
_OTHER_SEED = 31337


def departures(subject: Subject, length: int) -> Iterator[tuple[str, Place]]:
    """The first thing that is another in a restored loop: soon, and past the first steps, which may be others.

    One that does not take as many steps was made for fewer.
    """
    soon, later = _BEFORE
    found = list(_departures(subject, length, soon))
    loop = BegunLoop.of(subject)
    if not found and loop.loop.restore is not None:
        taken = attempt(lambda: _go_on(loop, length, 0, later + _AFTER))
        found = [] if isinstance(taken, Caught) else list(_departures(subject, length, later))
    yield from found


def _departures(subject: Subject, length: int, before: int) -> Iterator[tuple[str, Place]]:
    begun, again, other = BegunLoop.of(subject), BegunLoop.of(subject), BegunLoop.of(subject, _OTHER_SEED)
    restore = other.loop.restore
    if begun.loop.snapshot is None or restore is None:
        return
    for each in (begun, again):
        _go_on(each, length, 0, before)
    kept = begun.saved()
    going, repeated = (_go_on(each, length, before, _AFTER) for each in (begun, again))
    if differing(going[-1].after, repeated[-1].after, _TOLERANCE, going[0].before):
        raise NotComparableError("two runs of the same steps give other weights")
    _take_frozen(other.sp.module, begun.sp.module)
    with preserved_state():
        ask("going on from a snapshot", lambda: restore(kept), other.sp.module)
    resumed = _go_on(other, length, before, _AFTER)
    for number, (one, two) in enumerate(zip(going, resumed, strict=True), 1):
        what = _what_differs(one, two, is_first=number == 1)
        if what:
            message = f"restored from a snapshot after {before} steps, {what} in step {number} from there"
            yield message, other.place_of(restore)
            return


def _take_frozen(module: nn.Module, other: nn.Module) -> None:
    """What is not trained comes from elsewhere, and need not be in a snapshot."""
    theirs = dict(other.named_parameters())
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad and name in theirs and theirs[name].shape == parameter.shape:
                parameter.copy_(theirs[name])


def remembered(subject: Subject, length: int) -> Iterator[tuple[str, Place]]:
    """What an evaluation put into the snapshot, and what steps alone then change to the weights as they are."""
    begun = BegunLoop.of(subject)
    if begun.loop.snapshot is None or begun.loop.evaluate is None:
        return
    _go_on(begun, length, 0, 1)
    before, weights_then = dict(tensors_by_path(begun.saved())), _weights(begun)
    with calls_of(nn.Module, "state_dict", begun.places()) as called:
        begun.evaluate(begun.batches(length, 97 * _HELD_OUT), subject.seed)
    kept = dict(tensors_by_path(begun.saved()))
    _go_on(begun, length, 1, _AFTER)
    now, weights = dict(tensors_by_path(begun.saved())), _weights(begun)
    changed = [path for path in kept if path not in before or not _same(kept[path], before[path])]
    new = [path for path in changed if path not in before or not _is_weight(path, before, weights_then)]
    follows = [
        path for path in new if path in now and not _same(now[path], kept[path]) and _is_weight(path, now, weights)
    ]
    if follows:
        place = begun.place_of(begun.loop.evaluate, called[-1] if called else None)
        message = f"what an evaluation keeps follows the weights in later steps: {listed(follows)} of the snapshot"
        yield f"{message} are those of the last step", place


def _weights(begun: BegunLoop) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in begun.sp.module.state_dict().items()}


def _go_on(begun: BegunLoop, length: int, first: int, count: int) -> list[Step]:
    """Steps of these numbers, each on batches and under a seed of its own, whichever loop takes it."""
    return [begun.step(begun.batches(length, 97 * number), 7 + number) for number in range(first, first + count)]


def _what_differs(one: Step, two: Step, *, is_first: bool) -> str:
    """What of a step is another in the restored loop; weights before it alone where it is the first from there."""
    other = differing(one.gradients, two.gradients, _TOLERANCE)
    # Some are put back as the step begins.
    lost = differing(one.before, two.before, _TOLERANCE) if is_first and other else []
    if lost:
        return f"{listed(lost)} are not what was saved"
    rates = [pair for pair in zip(one.rates, two.rates, strict=False) if not _near(*pair)]
    if rates:
        return f"the learning rate is {rates[0][1]:.3g}, and {rates[0][0]:.3g} in the loop that went on"
    if other:
        return f"the gradient of {listed(other)} is another than in the loop that went on"
    moved = differing(one.after, two.after, _TOLERANCE, one.before)
    if moved:
        return f"the optimizer moves {listed(moved)} otherwise than in the loop that went on"
    return ""


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= _TOLERANCE * max(abs(one), abs(other))


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool(one.equal(other))


def _is_weight(path: str, now: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> bool:
    """Whether it is called as a weight of the module is, and holds what that does."""
    return any(path.endswith(f".{name}") and _same(now[path].cpu(), value.cpu()) for name, value in weights.items())

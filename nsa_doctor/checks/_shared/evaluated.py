"""What an evaluation leaves behind for the steps after it, and what it runs in."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from nsa_doctor.checks._shared.unlearned import listed
from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.method_calls import calls_of
from nsa_doctor.probes.model.begun_loop import BegunLoop, Evaluated, modes
from nsa_doctor.probes.model.stepping import Step
from nsa_doctor.subject.contract import Subject

_ROWS = 2
_TOLERANCE = 1e-5
_LOSSES_APART = 1e-4
_MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Left:
    """What was seen of an evaluation, in words."""

    message: str
    place: Place
    is_note: bool = False
    evidence: dict[str, str | float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Second:
    """The second step of a loop, which modules ran in training mode in it, and the lines that set a mode before it."""

    taken: Step
    training: tuple[str, ...]
    places: tuple[Place, ...]


def another_step(subject: Subject, length: int) -> Iterator[Left]:
    """The second of two steps, with an evaluation between them and without."""
    begun = BegunLoop.of(subject)
    if begun.loop.evaluate is None:
        raise NotApplicableError("its training loop offers no evaluation")
    plain, again, evaluated = (_second_step(subject, length, is_between=each) for each in (False, False, True))
    if _differing(plain.taken.gradients, again.taken.gradients):
        raise NotComparableError("two runs of the same two steps give other gradients")
    place = begun.place_of(begun.loop.evaluate, evaluated.places[-1] if evaluated.places else None)
    other = _differing(plain.taken.gradients, evaluated.taken.gradients)
    is_another = bool(other or _differing(plain.taken.after, evaluated.taken.after))
    moved = _differing(plain.taken.before, evaluated.taken.before) if is_another else []
    if moved:
        message = f"an evaluation between two steps changes {listed(moved)}"
        yield Left(message=message, place=begun.place_of(begun.loop.evaluate))
        return
    still = [path for path in plain.training if path not in evaluated.training]
    if not other:
        yield from _moved_otherwise(begun, plain.taken, evaluated.taken)
        return
    message = f"the step after an evaluation at S={length} has other gradients, of {listed(other)}"
    if still:
        parts = "the module" if still == [""] else ", ".join(path or "the module" for path in _outermost(still))
        message += f": in eval() since are {parts}"
    yield Left(message=message, place=place, evidence={"left_in_eval": ",".join(still), "parameters": ",".join(other)})


def _moved_otherwise(begun: BegunLoop, plain: Step, evaluated: Step) -> Iterator[Left]:
    """Steps of one gradient at one rate that end elsewhere: what the optimizer had kept is gone."""
    names = _differing(plain.after, evaluated.after)
    if names and plain.rates == evaluated.rates:
        message = f"the optimizer moves {listed(names)} otherwise in the step after an evaluation, at the same gradient"
        yield Left(message=message, place=begun.place_of(begun.loop.evaluate))


def of_one_batch(subject: Subject, length: int) -> Iterator[Left]:
    """An evaluation of two batches that is that of one of them, where the other has another loss."""
    begun = BegunLoop.of(subject)
    batches = _batches(begun, length, 3)
    one, other, both = (begun.evaluate(each, subject.seed).loss for each in (batches[:1], batches[1:], batches))
    if abs(one - other) <= _LOSSES_APART * max(abs(one), abs(other)):
        return
    for which, loss in (("first", one), ("last", other)):
        if abs(both - loss) <= _TOLERANCE * abs(loss):
            message = f"an evaluation of two batches at S={length} gives {both:.6g}, as the {which} of them does alone"
            message += f": the losses of the two are {one:.6g} and {other:.6g}"
            yield Left(message=message, place=begun.place_of(begun.loop.evaluate))


def in_training_mode(subject: Subject, length: int) -> Iterator[Left]:
    """Two evaluations of the same batches by one loop, under other draws."""
    begun = BegunLoop.of(subject)
    module, batches = begun.sp.module, _batches(begun, length, 3)
    begun.step(_batches(begun, length, 0), subject.seed)
    before = _running(module)
    with calls_of(nn.Module, "train", begun.places()) as called:
        one = begun.evaluate(batches, subject.seed)
    moved = [name for name, value in _running(module).items() if name in before and not value.equal(before[name])]
    other = begun.evaluate(batches, subject.seed + 1)
    place = begun.place_of(begun.loop.evaluate, called[0] if called else None)
    if one.training and (_apart(one, other) or moved):
        what = f"gives {one.loss:.6g} and {other.loss:.6g} for the same batches" if _apart(one, other) else "moves"
        what += "" if _apart(one, other) else f" {', '.join(moved[:_MOST_NAMED])}"
        parts = ", ".join(path or "the module" for path in _outermost(one.training))
        yield Left(
            message=f"an evaluation at S={length} {what}: in training mode are {parts}",
            place=place,
            evidence={"loss": one.loss, "again": other.loss, "training": ",".join(one.training)},
        )
    elif one.keeps_graph:
        message = "an evaluation runs with gradients on: its graphs take memory, which torch.no_grad() would save"
        yield Left(message=message, place=begun.place_of(begun.loop.evaluate), is_note=True)


def _second_step(subject: Subject, length: int, *, is_between: bool) -> _Second:
    begun = BegunLoop.of(subject)
    begun.step(_batches(begun, length, 0), subject.seed)
    with calls_of(nn.Module, "train", begun.places()) as called:
        if is_between:
            begun.evaluate(_batches(begun, length, 3), subject.seed)
    with modes(begun.sp.module) as training:
        taken = begun.step(_batches(begun, length, 6), subject.seed + 1)
    return _Second(taken=taken, training=tuple(training), places=tuple(called))


def _batches(begun: BegunLoop, length: int, seed: int) -> list[Tensor]:
    first = begun.sp.subject.seed + seed
    return [begun.sp.input(length, batch=_ROWS, seed=first + index) for index in range(2)]


def _differing(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[str]:
    """Names whose values are others by more than rounding, or that one of the two lacks."""
    names = [name for name in one.keys() ^ other.keys() if bool((dict(one) | dict(other))[name].any())]
    for name in one.keys() & other.keys():
        a, b = one[name].to_dense().double(), other[name].to_dense().double()
        if not float((a - b).norm()) <= _TOLERANCE * float(a.norm()):
            names.append(name)
    return sorted(names)


def _apart(one: Evaluated, other: Evaluated) -> bool:
    return abs(one.loss - other.loss) > _TOLERANCE * max(abs(one.loss), abs(other.loss))


def _running(module: nn.Module) -> dict[str, Tensor]:
    """Buffers of numbers, such as running statistics."""
    return {name: each.detach().clone() for name, each in module.named_buffers() if each.is_floating_point()}


def _outermost(paths: Sequence[str]) -> list[str]:
    """Those that lie in no other of them, some at most."""
    outer = [path for path in paths if not any(path != each and _holds(each, path) for each in paths)]
    return outer[:_MOST_NAMED] + (["…"] if len(outer) > _MOST_NAMED else [])


def _holds(outer: str, path: str) -> bool:
    return not outer or path.startswith(f"{outer}.")

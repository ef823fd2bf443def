"""What an evaluation leaves behind for the steps after it, and what it runs in."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.stepped import differing
from nsa_doctor.checks._shared.unlearned import listed
from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.finding import Finding, Note, Scalar
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.text import joined
from nsa_doctor.probes.hooks.method_calls import calls_of
from nsa_doctor.probes.model.begun_loop import BegunLoop, Evaluated, modes
from nsa_doctor.probes.model.stepping import Step
from nsa_doctor.subject.contract import Subject

_TOLERANCE = 1e-5
_LOSSES_APART = 1e-4
_MOST_NAMED = 3
_HELD_OUT, _SECOND = 3, 6  # seeds of batches


@dataclass(frozen=True, kw_only=True)
class _Second:
    """The second step of a loop, which modules ran in training mode in it, and the lines that set a mode before it."""

    taken: Step
    training: tuple[str, ...]
    places: tuple[Place, ...]


class Evaluation:
    """The evaluation of a subject's training loop; NotApplicableError where it has none."""

    def __init__(self, subject: Subject, length: int) -> None:
        self._subject, self._length = subject, length
        self._begun = BegunLoop.of(subject)
        if self._begun.loop.evaluate is None:
            raise NotApplicableError("its training loop offers no evaluation")

    def another_step(self) -> Iterator[Finding]:
        """The second of two steps, with an evaluation between them and without."""
        plain, again, evaluated = (self._second_step(is_between=each) for each in (False, False, True))
        if differing(plain.taken.gradients, again.taken.gradients, _TOLERANCE):
            raise NotComparableError("two runs of the same two steps give other gradients")
        gradients, after, before = (
            differing(getattr(plain.taken, name), getattr(evaluated.taken, name), _TOLERANCE)
            for name in ("gradients", "after", "before")
        )
        still = [path for path in plain.training if path not in evaluated.training]
        if before and (gradients or after):
            yield self._finding(f"an evaluation between two steps changes {listed(before)}")
        elif gradients:
            message = f"the step after an evaluation at S={self._length} has other gradients, of {listed(gradients)}"
            message += f": in eval() since are {_outermost(still)}" if still else ""
            yield self._finding(message, evaluated.places[-1:], left_in_eval=",".join(still))
        elif after and plain.taken.rates == evaluated.taken.rates:  # what the optimizer had kept is gone
            message = f"the optimizer moves {listed(after)} otherwise in the step after an evaluation"
            yield self._finding(f"{message}, at the same gradient")

    def in_training_mode(self) -> Iterator[Finding]:
        """Evaluations of the same batches under other draws, that differ where the modes are as they are left alone."""
        begun = self._stepped()
        before = _running(begun.sp.module)
        with calls_of(nn.Module, "train", begun.places()) as called:
            one = self._evaluated(begun, 0)
        running = _running(begun.sp.module)
        moved = [name for name, value in running.items() if name in before and not value.equal(before[name])]
        other = self._evaluated(begun, 1)
        if not math.isfinite(one.loss + other.loss):
            yield self._finding(f"an evaluation at S={self._length} gives {one.loss}", loss=str(one.loss))
            return
        is_drawn = bool(one.training) and _apart(one, other) and not self._is_drawn_in_eval()
        if is_drawn or (one.training and moved):
            what = f"gives {one.loss:.6g} and {other.loss:.6g} for the same batches" if is_drawn else ""
            message = f"an evaluation at S={self._length} {what or 'moves ' + ', '.join(moved[:_MOST_NAMED])}"
            message += f": in training mode are {_outermost(one.training)}"
            yield self._finding(message, called[:1], loss=one.loss, again=other.loss, training=",".join(one.training))

    def seeding(self) -> Iterator[Finding]:
        """Evaluations that leave a generator in one state, whatever state it was in."""
        begun = self._stepped()
        with calls_of(torch, "manual_seed", begun.places()) as called:
            one, other = (self._evaluated(begun, draw) for draw in range(2))
        same = sorted(name for name, number in one.drawn.items() if other.drawn.get(name) == number)
        if same:
            names = joined(same)
            message = (
                f"an evaluation at S={self._length} sets the random generator of {names} to one state: what steps "
            )
            yield self._finding(f"{message}draw, as dropout, is the same after each", called[:1], generators=names)

    def of_one_batch(self) -> Iterator[Finding]:
        """An evaluation of two batches that is that of one of them, where the other has another loss."""
        batches = self._begun.batches(self._length, self._subject.seed + _HELD_OUT)
        seed = self._subject.seed
        one, other, both = (self._begun.evaluate(each, seed).loss for each in (batches[:1], batches[1:], batches))
        if abs(one - other) <= _LOSSES_APART * max(abs(one), abs(other)):
            return
        for which, loss in (("first", one), ("last", other)):
            if abs(both - loss) <= _TOLERANCE * abs(loss):
                message = f"an evaluation of two batches at S={self._length} gives {both:.6g}, as the {which} of them "
                yield self._finding(f"{message}does alone: the losses of the two are {one:.6g} and {other:.6g}")

    def notes(self) -> Iterator[Note]:
        """That graphs are kept."""
        if self._evaluated(self._stepped(), 0).keeps_graph:
            message = "an evaluation runs with gradients on: its graphs take memory, which torch.no_grad() would save"
            yield Note(message=message, where=self._begun.place_of(self._begun.loop.evaluate))

    def _finding(self, message: str, lines: Sequence[Place] = (), **evidence: Scalar) -> Finding:
        """At the first of these lines, else where the evaluation is defined."""
        place = self._begun.place_of(self._begun.loop.evaluate, next(iter(lines), None))
        return Finding(message=message, where=place, evidence={"length": self._length, **evidence})

    def _stepped(self) -> BegunLoop:
        """A loop that has taken a step."""
        begun = BegunLoop.of(self._subject)
        begun.step(begun.batches(self._length, self._subject.seed), self._subject.seed)
        return begun

    def _second_step(self, *, is_between: bool) -> _Second:
        begun = self._stepped()
        with calls_of(nn.Module, "train", begun.places()) as called:
            if is_between:
                self._evaluated(begun, 0)
        with modes(begun.sp.module) as training:
            batches = begun.batches(self._length, self._subject.seed + _SECOND)
            taken = begun.step(batches, self._subject.seed + 1)
        return _Second(taken=taken, training=tuple(training), places=tuple(called))

    def _evaluated(self, begun: BegunLoop, draw: int) -> Evaluated:
        batches = begun.batches(self._length, self._subject.seed + _HELD_OUT)
        return begun.evaluate(batches, self._subject.seed + draw)

    def _is_drawn_in_eval(self) -> bool:
        """Whether evaluations under other draws differ where all is in eval(): the mode is not why, then."""
        begun = self._stepped()
        begun.sp.module.eval()
        with patch.object(nn.Module, "train", lambda module, mode=True: module):
            return _apart(self._evaluated(begun, 0), self._evaluated(begun, 1))


def _apart(one: Evaluated, other: Evaluated) -> bool:
    return abs(one.loss - other.loss) > _TOLERANCE * max(abs(one.loss), abs(other.loss))


def _running(module: nn.Module) -> dict[str, Tensor]:
    """Buffers of numbers, such as running statistics."""
    return {name: each.detach().clone() for name, each in module.named_buffers() if each.is_floating_point()}


def _outermost(paths: Sequence[str]) -> str:
    """Those that lie in no other of them, some at most."""
    outer = [path for path in paths if not any(path != each and _holds(each, path) for each in paths)]
    return ", ".join([path or "the module" for path in outer[:_MOST_NAMED]] + ["…"] * (len(outer) > _MOST_NAMED))


def _holds(outer: str, path: str) -> bool:
    return not outer or path.startswith(f"{outer}.")

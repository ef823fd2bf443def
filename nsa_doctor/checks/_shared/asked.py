"""Gradients asked for in several ways, and the finding about the first way that gives others."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from nsa_doctor.core.errors import NotApplicableError, SubjectFailedError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.gradients.askings import (
    Asking,
    Gradients,
    are_finite,
    described,
    differing,
    gradients,
    has_gradients,
)
from nsa_doctor.probes.gradients.gradient_place import gradient_place
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.numerics.compare import baseline
from nsa_doctor.probes.numerics.precision import finest_precision
from nsa_doctor.subject.contract import Subject

Ways = Callable[[BuiltModule], Iterator[Asking]]
_LENGTH, _ROWS = 37, 3
_ANOTHER_SEED = 31337
_LOUDER = 4.0
_NOISES = 30.0  # times what another rounding of the cotangent makes: terms that cancel leave rounding alone


def first_departing(subject: Subject, code: str, ways: Ways, *, is_confirmed: bool = False) -> Iterator[Finding]:
    """At most one finding: the first of these ways whose gradients differ from those asked for plainly.

    `is_confirmed` asks that another seed's weights and input show it too.
    """
    bench = _Bench.of(subject)
    for number, asking in enumerate(ways(bench.built)):
        found = bench.departing(asking)
        if found is None:
            continue
        if is_confirmed:
            other = _Bench.of(replace(subject, seed=subject.seed + _ANOTHER_SEED))
            if other.departing(list(ways(other.built))[number]) is None:
                continue
        yield bench.finding(code, asking, *found)
        return


class _Bench:
    """A module in eval(), its input and a cotangent."""

    def __init__(self, built: BuiltModule, x: Tensor, cotangent: Tensor) -> None:
        self.built, self.x, self.cotangent = built, x, cotangent
        self._eps = finest_precision(built, x).eps

    @classmethod
    def of(cls, subject: Subject) -> "_Bench":
        built = comparable_module(subject)
        x = built.input(min(_LENGTH, subject.max_length), batch=_ROWS)
        if not has_gradients(built, x):
            raise NotApplicableError("its output in eval() depends on no parameter that is trained")
        shape = baseline(built, x).output.shape
        generator = torch.Generator().manual_seed(subject.seed)
        return cls(built, x, torch.randn(shape, generator=generator, dtype=torch.float64))

    def departing(self, asking: Asking) -> tuple[Gradients, Gradients] | None:
        """The gradients asked for so and those of the plain asking, where they differ."""
        plain = _plainly(asking)
        expected = gradients(self.built, self.x, asking.like(self.cotangent), plain)
        result = self._asked(asking)
        if expected is None or result is None:
            return None
        expected, eps = expected.times(asking.loudness), self._eps * asking.rounding
        names = self._differing(asking, result, expected)
        if not names or (asking.loudness != 1 and self._is_clipped(asking, result, eps)):
            return None
        if asking.trains and any(not bool(expected.parameters[name].any()) for name in names):
            return None  # eval() passes it no gradient on: a choice, whose gradient is estimated where it is trained
        return result, expected

    def _differing(self, asking: Asking, result: Gradients, expected: Gradients) -> list[str]:
        """The parameters whose gradients differ by more than rounding makes of their size and of their terms."""
        names = differing(result, expected, self._eps * asking.rounding)
        if not names or not are_finite(result):
            return names
        generator = torch.Generator().manual_seed(_ANOTHER_SEED)
        drawn = torch.randn(self.cotangent.shape, generator=generator, dtype=torch.float64)
        rounded = self.cotangent * (1 + self._eps * asking.rounding * drawn)
        moved = gradients(self.built, self.x, asking.like(rounded), _plainly(asking))
        if moved is None:
            return names
        noise = {name: _apart(each, expected, name) for name, each in moved.times(asking.loudness).parameters.items()}
        return [name for name in names if not _apart(result.parameters[name], expected, name) <= _NOISES * noise[name]]

    def _is_clipped(self, asking: Asking, result: Gradients, eps: float) -> bool:
        """Whether still larger cotangents do not give gradients that are larger in proportion: they are clipped."""
        louder = self._asked(replace(asking, loudness=_LOUDER * asking.loudness))
        if louder is None or not are_finite(result):
            return False
        return bool(differing(louder, result.times(_LOUDER), eps))

    def _asked(self, asking: Asking) -> Gradients | None:
        try:
            with unobserved():
                return gradients(self.built, self.x, self.cotangent, asking)
        except SubjectFailedError as failure:
            if asking.may_refuse(failure) or (asking.refuses_forward and failure.phase == "forward"):
                return None
            phase = f"{failure.phase} ({asking.words})"
            raise SubjectFailedError(phase, failure.caught, failure.module, failure.output) from failure

    def finding(self, code: str, asking: Asking, result: Gradients, expected: Gradients) -> Finding:
        """What differs, and the module or the hand-written backward that is handed right gradients alone."""
        eps, length, subject = self._eps * asking.rounding, self.x.shape[1], self.built.subject
        names = self._differing(asking, result, expected)
        ways = (partial(gradients, self.built, self.x, self.cotangent, each) for each in (asking, _plainly(asking)))
        with unobserved():
            place = gradient_place(self.built, result, expected, eps, ways)
        return Finding(
            message=f"{asking.words} gives {described(result, expected, names)} at S={length}, nearest the output in "
            f"{names[-1]}",
            where=place,
            evidence={
                "length": length,
                "asking": asking.words,
                "num_parameters": len(names),
                "dtype": self.built.dtype,
            },
            repro=command_for(subject, code),
        )


def _apart(value: Tensor, expected: Gradients, name: str) -> float:
    return float((value.double() - expected.parameters[name].double()).norm())


def _plainly(asking: Asking) -> Asking:
    """What has to give the same."""
    return Asking("plainly", given=asking.given_like, handed=asking.handed_like)

"""Observes every call that a check makes: what raises or is not finite on ordinary input is kept, whoever asked.

Ordinary means what the sweep would measure: the subject's own dtype or a half precision of it, a length that it serves,
finite input of usual size, weights as they were built or moved a little. A check that provokes more says so by
`phase.unobserved`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, NotComparableError, SubjectFailedError, attempt
from nsa_doctor.core.measurement import GRADIENTS, OUTPUT, Census, Mode
from nsa_doctor.probes.hooks.phase import is_of_the_watch, listener
from nsa_doctor.probes.internal import is_traced
from nsa_doctor.probes.model.own_error import is_own_error
from nsa_doctor.probes.model.snapshot import Snapshot
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.tensors.answer import split_answer
from nsa_doctor.probes.tensors.finite import census, holds_nonfinite, isfinite, joint_census
from nsa_doctor.subject.contract import Subject, WrongOutputError

Kind = Literal["raised", "wrong_shape", "output", "gradients"]
_CALLS = ("forward", "prefill", "step", "packed", "loss", "train_step", "generate", "draw", "gate", "branches")
_JUDGED = ("forward", "prefill", "step", "packed", "loss")  # those whose result has to be finite
_LARGEST_INPUT = 16.0  # of embeddings; ordinary ones are normal
_MOST_GROWTH, _MOST_ADDED = 2.0, 0.5  # of weights that a check may have moved
_MOST_KEPT = 8


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a seam: its number among those of the check, and the conditions it was made under."""

    number: int
    seam: str
    dtype: str
    mode: Mode
    module: nn.Module | None = field(default=None, repr=False, compare=False)
    batch: int = 1
    length: int = 0
    has_autocast: bool = False
    is_usual_input: bool = False


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What one call did: raise (`failure`), or give values that are not finite (`census`)."""

    kind: Kind
    call: Call
    failure: SubjectFailedError | None = None
    census: Census | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Observations alike are one."""
        what = str(self.failure) if self.failure is not None else ""
        return (self.kind, what, self.call.seam, self.call.mode, self.call.batch > 1, self.call.dtype)


@dataclass
class Observer:
    """Listens to a check's calls of a subject; `capture` is the number of the call to take a snapshot before."""

    subject: Subject
    capture: int | None = None
    snapshot: Snapshot | None = None
    _kept: dict[tuple[object, ...], Observation] = field(default_factory=dict)
    _num_calls: int = 0
    _served: set[tuple[str, bool, str, bool]] = field(default_factory=set)
    _last: Call | None = None
    _usual_sizes: Mapping[str, float] | None = None

    @property
    def observations(self) -> list[Observation]:
        """The first of each kind, in the order they were made."""
        return list(self._kept.values())

    def observed(self) -> Subject:
        """The subject, every call of which is observed."""
        subject = self.subject
        seams: dict[str, Any] = {name: self._wrapped(name) for name in _CALLS if subject.offers(name)}
        return replace(subject, build=self._building(), **seams)

    def raised(self, failure: SubjectFailedError) -> None:
        """Keep what a backward pass raised, or that a call returned the wrong thing: the call itself did not raise."""
        error = failure.caught.error
        if self._last is None or failure.module is not self._last.module:
            return
        if failure.phase == "backward" and isinstance(error, Exception):
            self._keep(Observation(kind="raised", call=self._last, failure=failure))
        elif isinstance(error, WrongOutputError):
            self._keep(Observation(kind="wrong_shape", call=self._last, failure=failure))

    def returned(self, phase: str, module: nn.Module | None) -> None:
        """Keep gradients that are not finite."""
        call = self._last
        if phase != "backward" or module is None or call is None or module is not call.module:
            return
        self._served.add((call.dtype, call.has_autocast, "backward", call.mode == "train"))
        if is_traced():
            return
        gradients = {name: value.grad for name, value in module.named_parameters() if value.grad is not None}
        if any(holds_nonfinite(gradient) for gradient in gradients.values()):
            self._keep(Observation(kind="gradients", call=call, census=joint_census(GRADIENTS, gradients)))

    def _building(self) -> Callable[[int], nn.Module]:
        def build(seed: int) -> nn.Module:
            made = attempt(lambda: self.subject.build(seed))
            if isinstance(made, Caught):
                if listener() is self and isinstance(made.error, Exception):
                    self._keep_unbuilt(SubjectFailedError("build", made, None))
                raise made.error
            return made

        build.__wrapped__ = self.subject.build  # type: ignore[attr-defined]
        return build

    def _keep_unbuilt(self, failure: SubjectFailedError) -> None:
        call = Call(number=self._num_calls, seam="build", dtype=self.subject.dtype, mode=self.subject.modes[0])
        self._kept.setdefault(("build", str(failure)), Observation(kind="raised", call=call, failure=failure))

    def _wrapped(self, seam: str) -> Callable[..., Any]:
        made: Callable[..., Any] = getattr(self.subject, seam)

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if listener() is not self:
                return made(module, *args, **kwargs)
            self._num_calls += 1
            under = self._last = self._call(seam, module, args)
            if self._num_calls == self.capture:
                self.snapshot = Snapshot.of(module, seam, args, kwargs)
            answer = attempt(lambda: made(module, *args, **kwargs))
            if isinstance(answer, Caught):
                self._keep_raised(under, answer)
                raise answer.error
            if under.is_usual_input:
                self._served.add((under.dtype, under.has_autocast, seam, under.mode == "train"))
            self._judge(under, answer)
            return answer

        call.__wrapped__ = made  # type: ignore[attr-defined]
        return call

    def _call(self, seam: str, module: nn.Module, args: tuple[Any, ...]) -> Call:
        mode: Mode = "train" if module.training else ("eval" if torch.is_grad_enabled() else "no_grad")
        call = Call(number=self._num_calls, seam=seam, dtype=self.subject.dtype, mode=mode, module=module)
        x = next((each for each in args if isinstance(each, Tensor)), None)
        if x is None or is_traced():  # where every use of a tensor is seen, looking at one would be a use
            return call
        rows, length = (int(x.shape[0]), int(x.shape[1])) if x.ndim > 1 else (1, 0)
        held, own = _dtypes(module.parameters()) or _dtypes(module.buffers()), {self.subject.dtype}
        dtypes = (_dtypes([x]) or own) if not held or own <= held else held
        return replace(
            call,
            batch=rows,
            length=length,
            dtype=call.dtype if call.dtype in dtypes or not dtypes else min(dtypes),
            has_autocast=torch.is_autocast_enabled(x.device.type),
            is_usual_input=self._is_usual_input(x),
        )

    def _is_usual_input(self, x: Tensor) -> bool:
        """Before the call, which may write into it."""
        if type(x) is not Tensor or not x.numel():
            return False
        with torch.no_grad():
            if not x.is_floating_point():
                is_token = self.subject.input == "tokens"
                return is_token and int(x.min()) >= 0 and int(x.max()) < self.subject.width
            return float(x.abs().max()) <= _LARGEST_INPUT  # which NaN is not

    def _keep_raised(self, call: Call, caught: Caught) -> None:
        is_ours = isinstance(caught.error, NotComparableError) or is_of_the_watch(caught) or is_own_error(caught.error)
        if isinstance(caught.error, Exception) and not is_ours:
            failure = SubjectFailedError(call.seam, caught, call.module)
            self._keep(Observation(kind="raised", call=call, failure=failure))

    def _judge(self, call: Call, answer: Any) -> None:
        if call.seam not in _JUDGED or not call.is_usual_input:
            return
        output, _ = split_answer(answer, lambda tensor: tensor.is_floating_point() and tensor.ndim > 2)
        if isinstance(output, Tensor) and holds_nonfinite(output):
            self._keep(Observation(kind="output", call=call, census=census(OUTPUT, output)))

    def _keep(self, observation: Observation) -> None:
        key = observation.key
        if len(self._kept) < _MOST_KEPT and key not in self._kept and self._is_ordinary(observation):
            self._kept[key] = observation

    def _is_ordinary(self, observation: Observation) -> bool:
        call, subject = observation.call, self.subject
        most = max(subject.max_length, subject.longest)
        is_asked = call.is_usual_input and 0 < call.length <= most and call.mode in subject.modes
        if observation.failure is not None:
            is_asked &= self._runs_in(call, observation.failure.phase)
        return is_asked and call.module is not None and self._has_usual_weights(call.module)

    def _runs_in(self, call: Call, phase: str) -> bool:
        """Whether the subject runs in such a precision: its own, or one in which it has run before."""
        is_own = call.dtype == self.subject.dtype and not call.has_autocast
        what = "backward" if phase == "backward" else call.seam
        return is_own or (call.dtype, call.has_autocast, what, call.mode == "train") in self._served

    def _has_usual_weights(self, module: nn.Module) -> bool:
        """Whether all parameters are finite, and none is much larger than when it was built."""
        if self._usual_sizes is None:
            with preserved_state():
                fresh = attempt(lambda: self.subject.build(self.subject.seed))
            self._usual_sizes = {} if isinstance(fresh, Caught) else _sizes(fresh)
        usual = self._usual_sizes
        return all(
            size <= _MOST_GROWTH * usual[name] + _MOST_ADDED if name in usual else size < float("inf")
            for name, size in _sizes(module).items()
        )


def _dtypes(tensors: Iterable[Tensor]) -> set[str]:
    return {str(value.dtype)[6:] for value in tensors if value.is_floating_point()}


def _sizes(module: nn.Module) -> dict[str, float]:
    """The largest magnitude of each parameter that can be counted; infinite where one is not finite."""
    sizes: dict[str, float] = {}
    for name, value in module.named_parameters():
        if type(value) is nn.Parameter and value.is_floating_point() and value.numel() and not value.is_meta:
            held = value.detach()
            sizes[name] = float(held.abs().max()) if bool(isfinite(held).all()) else float("inf")
    return sizes

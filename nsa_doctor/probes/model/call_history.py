"""Calls and switches made one after another on one built module, and what came of each call."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, NotComparableError, SubjectFailedError, attempt
from nsa_doctor.core.measurement import Mode
from nsa_doctor.probes.hooks.phase import ask, unobserved
from nsa_doctor.probes.internal import BUFFERS, is_scripted, registered, uncompiled
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.draws import Generators
from nsa_doctor.probes.model.measure import trouble_of
from nsa_doctor.probes.model.perform import NoWatcher, Watcher, checked_answer
from nsa_doctor.probes.model.running_state import GoesOn, RunningState, kept
from nsa_doctor.probes.model.state import cast, preserved_state, seed_everything
from nsa_doctor.probes.model.training import weighed
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.subject.contract import Subject

_LENGTH_IN_BFLOAT16, ROWS_IN_BFLOAT16 = 19, 2


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call on `batch` rows of `length` tokens; `train` and `eval` go backward, `no_grad` does not.

    `draw` seeds the generators of random numbers; the input depends on the size alone. `accumulates` leaves the
    gradients of the call before in place, and `wants_input_gradient` says whether the input requires one.
    """

    mode: Mode
    length: int
    batch: int = 3  # of two, a mix-up in two layers of a model undoes itself
    draw: int = 0
    accumulates: bool = False
    wants_input_gradient: bool = True

    @property
    def key(self) -> "Call":
        """The plain call whose output and gradients this one has to give too: draws count in training alone."""
        draw = self.draw if self.mode == "train" else 0
        return Call(mode=self.mode, length=self.length, batch=self.batch, draw=draw)

    def __str__(self) -> str:
        words = {"train": "a training pass", "eval": "a pass with gradients in eval()", "no_grad": "a call in eval()"}
        added = " that adds to the gradients" if self.accumulates else ""
        added += "" if self.wants_input_gradient else " on an input without a gradient"
        return f"{words[self.mode]}{added} at S={self.length}, B={self.batch}"


class Switch(StrEnum):
    """What is done to a module between calls, and must not change what equal calls give."""

    EVAL = "eval()"
    TRAIN = "train()"
    STATE = "state_dict()"
    COPY = "copy.deepcopy()"
    INTO_COPY = "copy.deepcopy() put in its place"
    TO = "to() its own device"
    BFLOAT16 = "a call in bfloat16"


Step = Call | Switch


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a call gave: output [B, S, ...] and gradients by name, or what it raised instead.

    `drawn_from` names the generators of random numbers that it moved; `raised` is the sentence of what was raised.
    """

    call: Call
    module: nn.Module
    output: Tensor | None = None
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    is_input_changed: bool = False
    drawn_from: tuple[str, ...] = ()
    failure: SubjectFailedError | None = None
    raised: str = ""

    def copied(self) -> "Outcome":
        """The same, in memory that no later call writes to."""
        output = None if self.output is None else self.output.clone()
        return replace(self, output=output, gradients={name: each.clone() for name, each in self.gradients.items()})

    @property
    def nonfinite(self) -> str:
        """The first thing of it that holds NaN or infinity: `the output`, `the gradient of NAME`; "" for none."""
        if self.output is not None and not bool(isfinite(self.output).all()):
            return "the output"
        names = (name for name, gradient in self.gradients.items() if not bool(isfinite(_dense(gradient)).all()))
        return next((f"the gradient of {name}" for name in names), "")


class CallHistory:
    """One module, built afresh, and the steps made on it.

    Running statistics that training passes move (buffers, frozen parameters) are put back after each, so that what
    differs later is kept where no checkpoint holds it. Where some state `goes_on`, it stays as it was moved, all of it
    or what counts alone (buffers of whole numbers, and attributes), and gradients are of the output alone, for what is
    returned beside it may rightly depend on it. Whoever makes the steps judges what comes of each.
    """

    def __init__(
        self, subject: Subject, *, dtype: str | None = None, mode: Mode = "eval", goes_on: GoesOn = ""
    ) -> None:
        self.built = built(subject, dtype=dtype, mode=mode)
        self._goes_on = goes_on

    def make(self, steps: "Sequence[Step]") -> Outcome | None:
        """Make all of these steps; the outcome of the last one."""
        outcome: Outcome | None = None
        for step in steps:
            outcome = self.step(step)
        return outcome

    def step(self, step: Step, watcher: Watcher | None = None) -> Outcome | None:
        """Make one step; its outcome, None for a switch and for a call that could not be made here."""
        if isinstance(step, Switch):
            self._switch(step)
            return None
        self.enter(step.mode)
        try:
            with (
                kept(self.built.module if step.mode == "train" else None, self._goes_on),
                preserved_state(),
                unobserved(),
            ):
                outcome = self._call(step, watcher or NoWatcher())
                return outcome if watcher is not None else outcome.copied()
        except NotComparableError:  # a length that hangs or ends the process
            return None
        except SubjectFailedError as failure:
            is_of_size = trouble_of(failure, self.built.subject.packages).kind in ("out_of_memory", "not_measured")
            return (
                None
                if is_of_size
                else Outcome(call=step, module=self.built.module, failure=failure, raised=failure.caught.sentence)
            )

    def moves_running_state(self, call: Call) -> bool:
        """Whether the second such call moves buffers or frozen parameters, where the history `goes_on`."""
        self.step(call)
        before = RunningState(self.built.module)
        self.step(call)
        return before.has_moved()

    def output(self, call: Call) -> Tensor:
        """The output of a call without gradients, for looking at its operations."""
        self.enter(call.mode)
        seeded = replace(self.built, subject=replace(self.built.subject, seed=self.built.subject.seed + call.draw))
        with unobserved():
            return seeded(self.built.input(call.length, call.batch))

    def enter(self, mode: Mode) -> None:
        """Switch the module to a mode, unless it is in it."""
        module = self.built.module
        if module.training != (mode == "train"):
            module.train() if mode == "train" else module.eval()

    def _switch(self, switch: Switch) -> None:
        module = self.built.module
        match switch:
            case Switch.EVAL:
                module.eval()
            case Switch.TRAIN:
                module.train()
            case Switch.STATE:
                attempt(module.state_dict)
            case Switch.TO:
                attempt(lambda: module.to(self.built.subject.device))
            case Switch.COPY:
                attempt(lambda: copy.deepcopy(module))
            case Switch.INTO_COPY:
                copied = attempt(lambda: copy.deepcopy(module))
                if not (isinstance(copied, Caught) or is_scripted(module)):  # some need not be
                    self.built = replace(self.built, module=copied)
            case Switch.BFLOAT16:
                with suppress(SubjectFailedError, NotComparableError), unobserved():  # it need not run in it
                    self._call_in_bfloat16()

    def _call_in_bfloat16(self) -> None:
        """One call of the module converted, which is given its own values back."""
        module, subject = self.built.module, self.built.subject
        with kept(module), _values_kept(module), preserved_state(), uncompiled(), torch.no_grad():
            cast(module, torch.bfloat16)
            in_half = BuiltModule(subject, module, "bfloat16")
            in_half(in_half.input(min(_LENGTH_IN_BFLOAT16, subject.max_length), ROWS_IN_BFLOAT16))

    def _call(self, call: Call, watcher: Watcher) -> Outcome:
        sp, subject = self.built, self.built.subject
        module, is_differentiated = sp.module, call.mode != "no_grad"
        before = _gradients_before(module, call)
        x = sp.input(call.length, call.batch)
        x.requires_grad_(is_differentiated and x.is_floating_point() and call.wants_input_gradient)
        watcher.know(module, x)
        seed_everything(subject.seed + call.draw)
        generators = Generators()
        with torch.set_grad_enabled(is_differentiated):
            given = x.clone()  # a subject may write into what flows through it; a leaf would refuse
            with watcher.phase("forward"):
                answer: Callable[[], tuple[Tensor, dict[str, Tensor]]] = lambda: checked_answer(  # noqa: E731
                    subject, subject.forward(module, given), x
                )
                output, others = ask("forward", answer, module)
            if is_differentiated and output.requires_grad:
                loss = weighed(output, {} if self._goes_on else others, subject.seed)
                watcher.follow(loss)
                with watcher.phase("backward"):
                    ask("backward", loss.backward, module, output)
        return Outcome(
            call=call,
            module=module,
            output=output.detach(),
            gradients=_gradients(module, x, before),
            is_input_changed=not torch.equal(given.detach(), x.detach()),
            drawn_from=generators.drawn_from(),
        )


@contextmanager
def _values_kept(module: nn.Module) -> Iterator[None]:
    """Have parameters and buffers hold the very tensors again that they hold now."""
    parameters = [(each, each.data) for each in module.parameters()]
    buffers = [(part, registered(part, (BUFFERS,))) for part in module.modules()]
    try:
        yield
    finally:
        for parameter, values in parameters:
            parameter.data = values
        for part, held in buffers:
            for name, buffer in held.items():
                setattr(part, name, buffer)


def _gradients_before(module: nn.Module, call: Call) -> dict[str, Tensor]:
    """What lies in `.grad` when a call begins: nothing, unless it adds to what is there."""
    if call.accumulates:
        return {name: p.grad.detach().clone() for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad(set_to_none=True)
    return {}


def _gradients(module: nn.Module, x: Tensor, before: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What one backward pass added, by name of parameter, and of the input."""
    found = {} if x.grad is None else {"the input": x.grad}
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            gradient = parameter.grad.detach()
            found[name] = gradient - before[name] if name in before else gradient
    return found


def _dense(values: Tensor) -> Tensor:
    return values if values.layout == torch.strided else values.to_dense()

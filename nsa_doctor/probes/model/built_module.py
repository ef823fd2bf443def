"""One built module and how to call it again and again on comparable terms."""

import inspect
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, NotComparableError, SubjectFailedError, attempt
from nsa_doctor.core.measurement import Mode, Point
from nsa_doctor.probes.hooks.phase import ask, in_mode, unobserved
from nsa_doctor.probes.internal import NORMS_BY_BATCH, is_scripted, let_scripted_take_hooks
from nsa_doctor.probes.model.inputs import make_input
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.probes.model.running_state import rewind
from nsa_doctor.probes.model.state import cast, preserved_state, seed_everything
from nsa_doctor.probes.tensors.finite import isfinite
from nsa_doctor.subject.contract import Subject

_LENGTH_FOR_TRYING = 17
_RELATIVE_STEP = 0.1
_FROM_ZERO = 0.02
_MOST_KEPT = 8
_trained: dict[tuple[int, int], tuple[object, bool]] = {}  # by the ids of two functions, which are kept alive with it


@dataclass(frozen=True)
class BuiltModule:
    """A module in a dtype and mode; calling it seeds everything, copies the input and checks the output's shape.

    Gradients flow as grad mode says. Running statistics that a call in training mode moved are put back before the next
    one. A subject that raises makes SubjectFailedError.
    """

    subject: Subject
    module: nn.Module
    dtype: str

    def input(self, length: int, batch: int | None = None, seed: int | None = None) -> Tensor:
        """Ordinary input, other in each row: [B, S, width] embeddings in `dtype`, or [B, S] token ids; as few rows as
        the module takes where no `batch` is asked for.
        """
        first = self.subject.seed if seed is None else seed
        point = Point(length=length, dtype=self.dtype)
        device = torch.device(self.subject.device)
        rows = range(self._fewest_rows if batch is None else batch)
        return torch.cat([make_input(self.subject, point, first + 7919 * row, device) for row in rows])

    @property
    def _fewest_rows(self) -> int:
        """One; two where a norm by the batch in training mode has one answer for each row to normalise."""
        answers_by_row = self.subject.answer is not None and self.subject.answer[1][:1] != ("S",)
        norms = [part for part in self.module.modules() if isinstance(part, NORMS_BY_BATCH) and part.training]
        return 2 if answers_by_row and norms else 1

    def __call__(self, x: Tensor) -> Tensor:
        """[B, S, ...]: the output for x, which is left alone."""
        return self.call(x.clone())

    def call(self, x: Tensor) -> Tensor:
        """The output for this very tensor: its strides count, and a subject may write into it."""
        subject, module = self.subject, self.module
        rewind(module)
        seed_everything(subject.seed)
        with preserved_state(random_too=False):
            return ask("forward", lambda: checked_answer(subject, subject.forward(module, x), x), module)[0]


def built(
    subject: Subject, *, dtype: str | None = None, mode: Mode = "eval", is_randomised: bool = True
) -> BuiltModule:
    """Build the subject afresh, in its own dtype by default, its parameters moved away from special values.

    A mode the subject does not run in gives way to one that it does.
    """
    mode = mode if mode in subject.modes else subject.modes[0]
    seed_everything(subject.seed)
    other = None if dtype in (None, subject.dtype) else getattr(torch, str(dtype))
    build = lambda: cast(subject.build(subject.seed), other, subject.device)  # noqa: E731
    module: nn.Module = ask("build", build, None)
    if is_scripted(module):
        let_scripted_take_hooks()
    if is_randomised:
        randomise(module, subject.seed)  # before eval(), which may merge weights
    return BuiltModule(subject, in_mode(module, mode), dtype or subject.dtype)


def comparable_module(subject: Subject, *, mode: Mode = "eval", is_randomised: bool = True) -> BuiltModule:
    """The subject in float64 where it runs in it, in training too, else in its own dtype."""
    if mode != "train" and not _trains_in_float64(subject):
        return built(subject, mode=mode, is_randomised=is_randomised)
    wide = built(subject, dtype="float64", mode=mode, is_randomised=is_randomised)
    try:
        with torch.no_grad():
            output = wide(wide.input(_LENGTH_FOR_TRYING))
    except SubjectFailedError:
        return built(subject, mode=mode, is_randomised=is_randomised)
    wide_enough = output.dtype == torch.float64
    return wide if wide_enough else built(subject, mode=mode, is_randomised=is_randomised)


def _trains_in_float64(subject: Subject) -> bool:
    """Whether its forward in training, which may do more, takes float64 too; asked once of what builds and calls it."""
    asked = inspect.unwrap(subject.build), inspect.unwrap(subject.forward)
    key = id(asked[0]), id(asked[1])
    if key not in _trained:
        while len(_trained) >= _MOST_KEPT:
            del _trained[next(iter(_trained))]
        with unobserved(), torch.no_grad():
            wide = attempt(lambda: built(subject, dtype="float64", mode="train"))
            failed = isinstance(wide, Caught) or isinstance(
                attempt(lambda: wide(wide.input(_LENGTH_FOR_TRYING))), Caught
            )
        _trained[key] = asked, not failed
    return _trained[key][1]


def randomise(module: nn.Module, seed: int) -> None:
    """Move every trainable parameter away from where it starts: by a tenth of itself, zeros to small values.

    Zeros, ones and equal rows hide bugs. Frozen parameters and buffers may be masks or decays: they stay, and so do
    the zeros of an embedding's padding, which no step of training moves.
    """
    generator = torch.Generator().manual_seed(seed + 104729)
    empty = [row for each in module.modules() for row in _zeros_of_padding(each)]
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.requires_grad or not parameter.is_floating_point():
                continue
            noise = torch.randn(parameter.shape, generator=generator, device="cpu").to(parameter)
            moved = parameter * noise.mul(_RELATIVE_STEP).add_(1)
            if not bool(parameter.all()):
                moved = torch.where(parameter == 0, _from_zero(parameter) * noise, moved)
            if not bool(isfinite(moved.sum())):
                moved = torch.where(isfinite(moved), moved, parameter)
            once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in parameter.stride())  # if expanded
            parameter[once].copy_(moved[once])
        for row in empty:
            row.zero_()


def _zeros_of_padding(module: nn.Module) -> list[Tensor]:
    """The row of an embedding that is kept for padding, where it is zero, as a view."""
    if not isinstance(module, nn.Embedding | nn.EmbeddingBag) or module.padding_idx is None:
        return []
    row = module.weight.detach()[module.padding_idx]
    return [] if bool(row.any()) else [row]


def require_finite(output: Tensor, length: int) -> Tensor:
    """The output; NotComparableError when it is not finite on ordinary input, which the NAN checks tell of."""
    if not bool(isfinite(output).all()):
        raise NotComparableError(f"the output is not finite at S={length}, so nothing can be compared with it")
    return output


def _from_zero(parameter: Tensor) -> float:
    """A tenth of what the other values of the parameter are like."""
    others = parameter[parameter != 0]
    return _RELATIVE_STEP * float(others.abs().mean()) if others.numel() else _FROM_ZERO

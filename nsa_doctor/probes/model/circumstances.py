"""Circumstances of a call that must not change what it computes, and calls under each of them."""

import gc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nsa_doctor.core.declared import Declaration
from nsa_doctor.core.forks import has_no_threads
from nsa_doctor.probes.internal import below_autograd, under_modes_of_here
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.other_answers import OtherAnswers, other_answers
from nsa_doctor.subject.contract import Subject

Call = Callable[[BuiltModule, Tensor], Tensor]
Around = Callable[[nn.Module, Callable[[], object]], object]
_INFERENCE = "inference_mode()"
_DEPTH = 100
_DRAWING = (torch.rand, torch.randn)
_DEFAULT_DTYPE = "float64 as torch's default dtype"


def _with_gradients(built: BuiltModule, x: Tensor) -> Tensor:
    with torch.enable_grad():
        return built(x).detach()


def without_gradients(built: BuiltModule, x: Tensor) -> Tensor:
    """The output [B, S, ...] of a plain call."""
    with torch.no_grad():
        return built(x)


def _below_autograd(built: BuiltModule, x: Tensor) -> Tensor:
    """As inference mode does, which breaks no operation up as autograd does."""
    with torch.no_grad(), below_autograd():
        return built(x)


@dataclass(frozen=True)
class Circumstance:
    """What surrounds a call, in words, and the call made under it.

    `without` is the call without it, of the same operations of torch's, so that the two can be followed.
    `rounding` is how much coarser than in the subject's dtype results may be rounded: what a subject makes without a
    dtype is float32 by default, and float64 where that is the default. It `may_raise` where what it pretends need not
    hold.
    """

    words: str
    call: Call
    rounding: float = 1.0
    may_raise: bool = False
    without: Call = _with_gradients

    def may_be_refused(self, error: BaseException) -> bool:
        """Whether the error may be torch's: autograd in inference mode or with nothing to train, or of two dtypes."""
        files, said = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)], str(error).lower()
        is_of_autograd = Path(files[-1]).is_relative_to(Path(torch.autograd.__file__).parent)
        is_of_dtypes = "dtype" in self.words and "type" in said
        return self.may_raise or is_of_autograd or "inference tensor" in said or is_of_dtypes


@dataclass(frozen=True)
class Surrounding:
    """What surrounds a forward and a backward pass, in words, and a function that makes them under it."""

    words: str
    around: Around
    rounding: float = 1.0


def circumstances(subject: Subject, dtype: str) -> Iterator[Circumstance]:
    """Those that apply to calls of a subject built in that dtype on its device."""
    for each in surroundings(subject, dtype):
        yield Circumstance(each.words, _under(each.around), each.rounding)
    yield Circumstance("a frozen model with gradients on", _within(_frozen))
    yield Circumstance("a model that holds gradients of an earlier backward", _within(_holding_gradients))
    for other in other_answers():
        call = _believing(other, subject.packages)
        yield Circumstance(other.words, call, may_raise=True, without=without_gradients)
    if subject.input == "embeddings":
        yield Circumstance("an input that requires a gradient", _with_gradient_of_the_input)
    # Last: what a module keeps from it may not serve training.
    yield Circumstance(_INFERENCE, _under_inference_mode, without=_below_autograd)


def surroundings(subject: Subject, dtype: str) -> Iterator[Surrounding]:
    """Those of the process, under which a backward pass can be made too."""
    yield Surrounding("autograd's anomaly mode", _managed(lambda: torch.autograd.detect_anomaly(check_nan=False)))
    yield Surrounding(f"torch's deterministic mode turned {_other_determinism()}", _managed(_other_determinism_on))
    if subject.device == "cpu" and not has_no_threads():
        yield Surrounding(f"{_other_number_of_threads()} threads of torch's", _managed(_other_threads))
    yield Surrounding("Python's garbage collector turned off", _managed(_without_garbage_collector))
    yield Surrounding(f"a stack {_DEPTH} calls deeper", lambda _module, work: _deeper(_DEPTH, work))
    yield Surrounding("a thread of Python's other than the main one", _in_another_thread)
    draws = Declaration.STOCHASTIC in subject.spec  # which are others in another dtype
    if dtype == "float64" and torch.get_default_dtype() == torch.float32 and not draws:
        coarser = torch.finfo(torch.float32).eps / torch.finfo(torch.float64).eps
        yield Surrounding(_DEFAULT_DTYPE, _managed(_float64_by_default), coarser)


def _within(manager: Callable[[nn.Module], AbstractContextManager[object]]) -> Call:
    def call(built: BuiltModule, x: Tensor) -> Tensor:
        with torch.enable_grad(), manager(built.module):
            return built(x).detach()

    return call


def _believing(other: OtherAnswers, packages: Sequence[str]) -> Call:
    def call(built: BuiltModule, x: Tensor) -> Tensor:
        with torch.no_grad(), other.given(packages):
            return built(x)

    return call


def _with_gradient_of_the_input(built: BuiltModule, x: Tensor) -> Tensor:
    with torch.enable_grad():
        return built(x.detach().requires_grad_()).detach()


def _under(around: Around) -> Call:
    def call(built: BuiltModule, x: Tensor) -> Tensor:
        outputs: list[Tensor] = []

        def once() -> None:
            with torch.enable_grad():  # each thread has a mode of its own
                outputs.append(built(x).detach())

        around(built.module, once)
        return outputs[0]

    return call


def _managed(manager: Callable[[], AbstractContextManager[object]]) -> Around:
    def around(_module: nn.Module, work: Callable[[], object]) -> object:
        with manager():
            return work()

    return around


def _in_another_thread(_module: nn.Module, work: Callable[[], object]) -> object:
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(under_modes_of_here(work)).result()


def _under_inference_mode(built: BuiltModule, x: Tensor) -> Tensor:
    with torch.inference_mode():
        output = built(x)
    return output.clone()


@contextmanager
def _without_garbage_collector() -> Iterator[None]:
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _deeper(depth: int, work: Callable[[], object]) -> object:
    return _deeper(depth - 1, work) if depth else work()


@contextmanager
def _float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        with _SameDraws():
            yield
    finally:
        torch.set_default_dtype(torch.float32)


class _SameDraws(TorchFunctionMode):
    """Draws in the default dtype are those of float32: the same generator gives another dtype other numbers."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one function."""
        given = kwargs or {}
        if func in _DRAWING and given.get("dtype") is None and given.get("out") is None:
            drawn = func(*args, **{**given, "dtype": torch.float32, "requires_grad": False}).to(torch.float64)
            return drawn.requires_grad_(given.get("requires_grad", False))
        return func(*args, **given)


@contextmanager
def _other_determinism_on() -> Iterator[None]:
    was, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(not was, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was, warn_only=warned)


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


@contextmanager
def _holding_gradients(module: nn.Module) -> Iterator[None]:
    held = [(parameter, parameter.grad) for parameter in module.parameters() if parameter.requires_grad]
    for parameter, _ in held:
        parameter.grad = torch.ones_like(parameter)
    try:
        yield
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient


@contextmanager
def _other_threads() -> Iterator[None]:
    was = torch.get_num_threads()
    torch.set_num_threads(_other_number_of_threads())
    try:
        yield
    finally:
        torch.set_num_threads(was)


def _other_determinism() -> str:
    return "off" if torch.are_deterministic_algorithms_enabled() else "on"


def _other_number_of_threads() -> int:
    return 2 if torch.get_num_threads() == 1 else 1

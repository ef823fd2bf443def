"""Circumstances of a call that must not change what it computes, and calls under each of them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from nsa_doctor.core.forks import has_no_threads
from nsa_doctor.probes.internal import below_autograd
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.subject.contract import Subject

Call = Callable[[BuiltModule, Tensor], Tensor]
_INFERENCE = "inference_mode()"


def circumstances(subject: Subject) -> Iterator[tuple[str, Call]]:
    """Each in words and how to call under it; whether it applies depends on the input and the device."""
    yield "autograd's anomaly mode", _within(lambda module: torch.autograd.detect_anomaly(check_nan=False))
    yield f"torch's deterministic mode turned {_other_determinism()}", _within(_with_other_determinism)
    yield "a frozen model with gradients on", _within(_frozen)
    yield "a model that holds gradients of an earlier backward", _within(_holding_gradients)
    if subject.input == "embeddings":
        yield "an input that requires a gradient", _with_gradient_of_the_input
    if subject.device == "cpu" and not has_no_threads():
        yield f"{_other_number_of_threads()} threads of torch's", _within(_with_other_threads)
    yield "a thread of Python's other than the main one", _in_another_thread
    yield _INFERENCE, _under_inference_mode  # last: what a module keeps from it may not serve training


def plainly(built: BuiltModule, x: Tensor, circumstance: str) -> Tensor:
    """The output without the circumstance, of the same operations of torch's, so that the two can be followed."""
    with torch.no_grad():
        if circumstance != _INFERENCE:
            return built(x)
        with below_autograd():  # inference mode breaks no operation up, as autograd does
            return built(x)


def _within(manager: Callable[[nn.Module], AbstractContextManager[object]]) -> Call:
    def call(built: BuiltModule, x: Tensor) -> Tensor:
        with torch.enable_grad(), manager(built.module):
            return built(x).detach()

    return call


def _with_gradient_of_the_input(built: BuiltModule, x: Tensor) -> Tensor:
    with torch.enable_grad():
        return built(x.detach().requires_grad_()).detach()


def _in_another_thread(built: BuiltModule, x: Tensor) -> Tensor:
    def call() -> Tensor:
        with torch.no_grad():  # each thread has a mode of its own
            return built(x)

    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(call).result()


def _under_inference_mode(built: BuiltModule, x: Tensor) -> Tensor:
    with torch.inference_mode():
        output = built(x)
    return output.clone()


@contextmanager
def _with_other_determinism(module: nn.Module) -> Iterator[None]:
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
def _with_other_threads(module: nn.Module) -> Iterator[None]:
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

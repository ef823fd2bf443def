"""The installed torch still says what its errors are known by."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.torch_errors import TorchError, error_evidence, error_kind


def modifies_a_saved_tensor() -> None:
    weights = torch.randn(3, requires_grad=True).sigmoid()
    weights.mul_(2).sum().backward()


def enters_a_freed_graph() -> None:
    loss = torch.randn(3, requires_grad=True).square().sum()
    loss.backward()
    loss.backward()


def normalises_one_value() -> None:
    nn.BatchNorm1d(3)(torch.randn(1, 3))


def asks_for_all_memory() -> None:
    torch.empty(1 << 50)


def looks_beyond_the_end() -> None:
    torch.zeros(3)[torch.tensor([5])]


def adds_other_sizes() -> None:
    torch.zeros(3) + torch.zeros(4)


def watches_what_a_transform_saves() -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        torch.func.grad(lambda x: x.square().sum())(torch.randn(3))


class Nested(torch.autograd.Function):
    """A backward that makes another: beyond some depth torch starts a thread for the next."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, depth: int) -> torch.Tensor:
        ctx.depth = depth
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        if ctx.depth:
            with torch.enable_grad():
                Nested.apply(torch.ones(1, requires_grad=True), ctx.depth - 1).sum().backward()
        return gradients[0], None


def copies_a_process_whose_autograd_has_threads() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
    raise RuntimeError(done.stdout)


def measures_distances_in_half_precision() -> None:
    torch.cdist(torch.ones(2, 2, dtype=torch.half), torch.ones(2, 2, dtype=torch.half))


def say_what_a_copy_raises() -> None:
    Nested.apply(torch.ones(1, requires_grad=True), 70).sum().backward()
    if (copy := os.fork()) == 0:
        said = attempt(torch.ones(1, requires_grad=True).sum().backward)
        print(said.error if isinstance(said, Caught) else "nothing", flush=True)
        os._exit(0)
    os.waitpid(copy, 0)


PROVOKED: dict[TorchError, Callable[[], None]] = {
    TorchError.SAVED_TENSOR_MODIFIED: modifies_a_saved_tensor,
    TorchError.GRAPH_FREED: enters_a_freed_graph,
    TorchError.ONE_VALUE_PER_CHANNEL: normalises_one_value,
    TorchError.HOST_MEMORY: asks_for_all_memory,
    TorchError.INDEX_OUT_OF_RANGE: looks_beyond_the_end,
    TorchError.SIZES_DIFFER: adds_other_sizes,
    TorchError.SAVES_WATCHED: watches_what_a_transform_saves,
    TorchError.FORKED: copies_a_process_whose_autograd_has_threads,
    TorchError.NO_KERNEL: measures_distances_in_half_precision,
}


@pytest.mark.parametrize("kind", TorchError)
def test_an_error_of_torch_is_known_by_what_it_says(kind: TorchError) -> None:
    raised = attempt(PROVOKED[kind])
    assert isinstance(raised, Caught)
    assert error_kind(str(raised.error)) is kind
    assert error_evidence(f"the subject raises {raised.sentence} in backward") == {"error": kind.value}


def test_any_other_exception_is_no_evidence() -> None:
    assert error_evidence("RuntimeError: shapes cannot be multiplied") == {}


if __name__ == "__main__":
    say_what_a_copy_raises()

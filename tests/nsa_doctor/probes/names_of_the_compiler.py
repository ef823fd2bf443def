"""What is taken of torch's compiler does what it is taken for; `test_internal` runs it."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.probes import internal


class Twice(torch.autograd.Function):
    """An autograd function in Python."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 2


@torch.library.custom_op("nsa_doctor_names::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    """An operator that is not torch's."""
    return x * 2


doubled.register_fake(torch.empty_like)
doubled.register_autograd(lambda ctx, gradient: gradient * 2)


def graphs_are_compiled_by_name() -> None:
    """A backend of a name computes what the function does."""
    sizes: list[int] = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        sizes.append(len(graph.graph.nodes))
        return internal.graph_compiler("aot_eager")(graph, inputs)

    x = torch.ones(2)
    assert torch.equal(torch.compile(lambda x: x.exp() + 1, backend=count)(x), x.exp() + 1)
    assert sizes


def operators_of_users_are_known() -> None:
    """In a graph, too, where the compiler names what it calls."""
    targets: list[Any] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        targets.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.compile(lambda x: Twice.apply(doubled(x).exp()), backend=keep)(torch.ones(2, requires_grad=True))
    assert sum(map(internal.is_registered_by_a_user, targets)) == len((doubled, Twice))
    assert not internal.is_registered_by_a_user(torch.ops.aten.exp.default)


def nothing_is_compiled() -> None:
    compiled_with: list[Any] = []
    compiled = torch.compile(torch.sin, backend=lambda graph, _: compiled_with.append(graph) or graph)
    with internal.uncompiled():
        compiled(torch.ones(2))
    assert not compiled_with

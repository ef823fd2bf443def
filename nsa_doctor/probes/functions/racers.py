"""What is timed: a function with the tensors of one problem, and dense attention of torch with the same sizes."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.probes.functions.calling import Asking, laid_out, prepared
from nsa_doctor.probes.functions.clock import Clocked, clocked
from nsa_doctor.probes.functions.layout import to_layout
from nsa_doctor.subject.function import FunctionSubject, Problem


class Racer(Protocol):
    """Passes that are timed again and again on the same tensors, as a benchmark does."""

    def forward(self) -> Clocked:
        """One call; its value is the output."""
        ...

    def backward(self, out: Tensor) -> Clocked:
        """The gradients of one output."""
        ...


class Called:
    """A function under its convention."""

    def __init__(self, subject: FunctionSubject, problem: Problem) -> None:
        self._subject, self._problem = subject, problem
        wants = tuple(problem.inputs) if subject.has_gradients else ()
        self._tensors = laid_out(subject, problem, Asking(wants=wants))
        self._call = prepared(subject, problem, self._tensors)
        layout = subject.convention.output or subject.convention.layout
        self._dout = to_layout(problem.dout.to(subject.device), layout).contiguous()

    def forward(self) -> Clocked:
        """One call; its value is the output."""
        return self._timed("forward", lambda: self._call()["out"])

    def backward(self, out: Tensor) -> Clocked:
        """The gradients of one output."""
        wanted = [tensor for tensor in self._tensors.values() if tensor.requires_grad]
        return self._timed("backward", lambda: torch.autograd.grad(out, wanted, self._dout, allow_unused=True))

    def _timed(self, phase: str, run: Callable[[], Any]) -> Clocked:
        self._subject.beat(self._problem.shape)
        with self._subject.wait(f"a kernel of its {phase}"):
            return clocked(run, self._subject.device)


class Dense:
    """torch's own attention of every query with every key, or with those before it: sequence by sequence."""

    def __init__(self, subject: FunctionSubject, problem: Problem) -> None:
        shape, self._device = problem.shape, subject.device
        widest = max(problem.branches, key=lambda branch: branch.seen.shape[-1])
        self.is_causal = shape.queries == shape.keys and not bool(widest.seen.triu(1).any())
        self._scale = problem.scale
        self._parts = shape.parts or ((shape.queries, shape.keys),)
        self._wanted = [
            problem.inputs[name].to(self._device).transpose(1, 2).contiguous().requires_grad_(subject.has_gradients)
            for name in ("q", widest.keys, widest.values)
        ]
        self._dout = problem.dout.to(self._device).transpose(1, 2).contiguous()

    def forward(self) -> Clocked:
        """One call; its value is the output."""
        return clocked(self._attend, self._device)

    def backward(self, out: Tensor) -> Clocked:
        """The gradients of one output."""
        return clocked(lambda: torch.autograd.grad(out, self._wanted, self._dout), self._device)

    def _attend(self) -> Tensor:
        q, k, v = self._wanted
        queries, keys = ([part[side] for part in self._parts] for side in (0, 1))
        outs = [
            scaled_dot_product_attention(
                *rows, is_causal=self.is_causal, scale=self._scale, enable_gqa=q.shape[1] != k.shape[1]
            )
            for rows in zip(q.split(queries, 2), k.split(keys, 2), v.split(keys, 2), strict=True)
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs, 2)

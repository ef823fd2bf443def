"""Calls on a GPU's other streams: one that is held up, and one that is captured and replayed with other values."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.functions.calling import Answer, Asking, ask, laid_out, prepared
from nsa_doctor.probes.functions.layout import from_layout, to_layout
from nsa_doctor.subject.function import FunctionSubject, Problem

_DELAY_SIZE = 4096
_DELAY_PRODUCTS = 40  # of float32 matrices, about a tenth of a second on a fast device
_WARM_UPS = 3


def on_a_late_stream(subject: FunctionSubject, problem: Problem) -> Answer:
    """The answer on a stream that fills the inputs late: who reads them on another one reads what they held before.

    They hold zeros before.
    """
    stream = torch.cuda.Stream()
    busy = torch.ones(_DELAY_SIZE, _DELAY_SIZE, device="cuda")
    before = {name: torch.zeros_like(each) for name, each in laid_out(subject, problem, Asking(wants=())).items()}
    torch.cuda.synchronize()

    def filled_late(name: str, tensor: Tensor) -> Tensor:
        late = before.get(name, torch.zeros_like(tensor))
        for _ in range(_DELAY_PRODUCTS):
            torch.mm(busy, busy)
        return late.copy_(tensor)

    with torch.cuda.stream(stream):
        torch.mm(busy, busy)
        return ask(subject, problem, Asking(arrange=filled_late))


def replayed(subject: FunctionSubject, first: Problem, second: Problem) -> Mapping[str, Tensor] | str:
    """What a graph captured with the first problem's values answers with the second's; why there is no graph.

    Forward and backward, in the doctor's own layout.
    """
    wants = first.inputs.keys() if subject.has_gradients else ()
    tensors = laid_out(subject, first, Asking(wants=tuple(wants)))
    layout = subject.convention.output or subject.convention.layout
    dout = to_layout(first.dout.to(subject.device), layout).clone(memory_format=torch.contiguous_format)
    names = [name for name, tensor in tensors.items() if tensor.requires_grad]
    kept: dict[str, Tensor] = {}
    call = prepared(subject, first, tensors)  # what it makes on the host, no capture allows

    def once() -> None:
        kept["out"] = call()["out"]
        if names and kept["out"].requires_grad:
            given = torch.autograd.grad(kept["out"], [tensors[name] for name in names], dout, allow_unused=True)
            kept.update({f"d{name}": each for name, each in zip(names, given, strict=True) if each is not None})

    captured = attempt(lambda: _captured(once))
    if isinstance(captured, Caught):
        return captured.sentence
    with torch.no_grad():
        for name, tensor in laid_out(subject, second, Asking(wants=())).items():
            tensors[name].copy_(tensor)
        dout.copy_(to_layout(second.dout.to(subject.device), layout))
    captured.replay()
    torch.cuda.synchronize()
    layouts = {name: layout if name == "out" else subject.convention.layout for name in kept}
    return {name: from_layout(value.detach().cpu(), layouts[name]) for name, value in kept.items()}


def _captured(once: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """The graph of a call, after a few that compile and tune."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UPS):
            once()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    return graph

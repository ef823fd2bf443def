"""Problems of equal parts, for tensors that lie in the memory of one part."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from nsa_doctor.probes.functions.calling import Arrange
from nsa_doctor.probes.functions.measured import Measured, measured_problem
from nsa_doctor.probes.functions.memory_layouts import collapsed, expanded
from nsa_doctor.probes.functions.problems import with_inputs
from nsa_doctor.subject.function import FunctionSubject, Problem


def in_shared_memory(subject: FunctionSubject, problem: Problem) -> Iterator[tuple[str, Measured, Arrange]]:
    """Tensors of equal parts that lie in the memory of one: of equal rows all, of equal rows or heads keys and values.

    The gradients of the last differ from row to row and from head to head, so that what is laid out as they are holds
    one of them.
    """
    inputs = problem.inputs
    equal = {name: value[:1].expand(value.shape) for name, value in inputs.items() if value.ndim == 4}
    alike = replace(with_inputs(problem, **equal), dout=torch.ones_like(problem.dout))
    yield "stride 0", measured_problem(subject, alike), expanded
    for axis, what in ((0, "rows"), (2, "heads")):
        parts = {
            name: inputs[name].narrow(axis, 0, 1).expand(inputs[name].shape)
            for name in ("k", "v")
            if name in inputs and inputs[name].shape[axis] > 1
        }
        if parts:
            shared = measured_problem(subject, with_inputs(problem, **parts))
            yield f"stride 0 between {what} of k and v", shared, collapsed

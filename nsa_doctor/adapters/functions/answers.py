"""What functions return, taken apart: a tensor, or a tuple that begins with it."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from nsa_doctor.subject.function import Problem


def output(result: Any, problem: Problem) -> Mapping[str, Any]:
    """The output; and the logarithm of the sum of exponentials, where a second tensor has its shape."""
    if isinstance(result, Sequence) and not isinstance(result, str) and len(result):
        out, *rest = result
        shape = problem.shape
        wanted = (shape.batch, shape.heads, shape.queries)
        for each in rest:
            if isinstance(each, Tensor) and each.is_floating_point():
                if tuple(each.shape) == wanted:
                    return {"out": out, "lse": each}
                if shape.batch == 1 and tuple(each.shape) == wanted[1:]:
                    return {"out": out, "lse": each[None]}
        return {"out": out}
    return {"out": result}

"""r009 inplace-on-a-view

Reported: 004, training at S=512 with synthetic data.
Symptom: backward raises "one of the variables needed for gradient computation has been modified by an inplace
    operation", "output 0 of AsStridedBackward0".
Cause: a view modified in place, as reported, though nobody found where. Established by running it: AsStridedBackward0
    does not mean that anything calls `as_strided`; autograd gives that name to every view, a slice or a column, whose
    base is written in place after the view was taken. The line to look for is such a write, and `.contiguous()`, which
    the report proposes, copies nothing where the tensor is contiguous already.
Check: GRD401, which names the line that writes and the line that saved.
"""

import torch
from torch import Tensor

from nsa.config import load_config
from nsa.nn import NSAttention
from nsa.ops.gate import vectorized as gate
from nsa_doctor.cases.case import examine, faulty_layer, found
from nsa_doctor.cases.record import Case, Plant
from nsa_doctor.subject.contract import Subject

_CONFIG = "m7c_125m_fast_log"


def reproduce() -> None:
    config = load_config(_CONFIG).model
    torch.manual_seed(0)
    layer = NSAttention(config)
    try:
        layer(torch.randn(1, 512, config.dim)).square().mean().backward()
    except RuntimeError as error:
        raise AssertionError(f"backward raises at S=512: {error}") from error
    out, gates = torch.rand(1, 8, 12, 4, requires_grad=True), torch.rand(1, 8, 2, 3, requires_grad=True)
    gate.mix(out, out, out, gates).sum().backward()
    message = ""
    try:
        normalises_in_place(out, out, out, gates).sum().backward()
    except RuntimeError as error:
        message = str(error)
    assert "which is output 0 of AsStrided" in message, f"what is planted is another bug: {message or 'nothing raises'}"


def normalises_in_place(compressed: Tensor, selected: Tensor, sliding: Tensor, gates: Tensor) -> Tensor:
    weights = gates * 1.0
    columns = [weights[..., index] for index in range(3)]
    weights.clamp_(min=1e-6)
    branches = [x.unflatten(2, (gates.shape[2], -1)).permute(3, 4, 0, 1, 2) for x in (compressed, selected, sliding)]
    terms = [branch * column for branch, column in zip(branches, columns, strict=True)]
    weights.div_(weights.sum(-1, keepdim=True))
    return torch.stack(terms).sum(0).permute(2, 3, 4, 0, 1).flatten(2, 3)


def planted() -> Subject:
    return faulty_layer({"nsa.ops.gate.vectorized.mix": normalises_in_place}, _CONFIG)


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="in the mix of the branches",
            command=examine(f"{__name__}:planted", "GRD401"),
            expected=found(
                "GRD401",
                file="r009_inplace_on_a_view.py",
                function="normalises_in_place",
                says=r"div_.* r009_inplace_on_a_view\.py:\d+",
            ),
        ),
    ),
)

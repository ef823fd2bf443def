"""r010 nonfinite-loss-at-step-1

Trained in a model of one layer; in full: `python -m nsa.train --config m7c_125m_fast_log --dataset fineweb_edu
--steps 200 --set train.on_nonfinite=trace`, then `nsa-doctor watch` on its folder.

Reported: 004, of the 200-step smoke run with the full configuration and of training at S=2048 on FineWeb-Edu.
Symptom: training aborts on step 1 with a loss that is not finite, no cause is given, and inference is finite.
Cause: reported to follow from zero gates (r007), lengths (r008) and an in-place write (r009). Established by the order
    of a step: the loss of step 1 is computed before any backward pass and any update, so the forward pass in training
    mode gave it and nothing else did; the in-place write raises in backward and makes no NaN, and gates of 1/3 are
    finite (r007 trains). r008 can be the cause; which line it was no report shows. Planted is one that fits all that
    was seen: in training mode alone, the softmax over the compressed blocks of a token that sees none of them.
Check: TRN201 on the run, with module, line and step, where it trains with on_nonfinite: trace.
"""

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from nsa.nn import NSAttention
from nsa_doctor.cases.case import found
from nsa_doctor.cases.record import Case, Plant

from .runs import finished, losses, written

_BRANCHES = NSAttention.branches
_M7C_NSA = {"l": 32, "d": 16, "l_sel": 64, "n_sel": 16, "w": 512}
_SHORT: dict[str, Any] = {"steps": 1, "batch_size": 1, "on_nonfinite": "trace", "warmup_steps": 0}


def reproduce() -> None:
    with tempfile.TemporaryDirectory() as place:
        for length in (512, 2048):
            run = written(Path(place) / str(length), nsa=_M7C_NSA, seq_len=length, **_SHORT)
            logged = losses(finished(run))
            assert all(math.isfinite(each) for each in logged), f"at S={length} the losses are {logged}"


def softmax_of_nothing(layer: Any, *given: Any, **named: Any) -> Any:
    """Weights of compressed blocks as a softmax of scores masked with -inf: 0/0 where a token sees no block."""
    branches = _BRANCHES(layer, *given, **named)
    if not layer.training:
        return branches
    length, geometry = branches.compressed.shape[1], layer.geometry
    ends = torch.arange(length // geometry.d) * geometry.d + geometry.l - 1
    scores = torch.zeros(length, len(ends)).masked_fill(ends > torch.arange(length)[:, None], -math.inf)
    seen = torch.softmax(scores, -1).sum(-1)
    return branches._replace(gated=branches.gated * seen[None, :, None, None])


def in_a_run(folder: Path) -> Sequence[str]:
    seams = {"nsa.nn.attention.NSAttention.branches": softmax_of_nothing}
    return ["watch", str(written(folder, seams, nsa=_M7C_NSA, seq_len=512, **_SHORT))]


_HERE = Path(__file__).name
CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="in a run",
            command=in_a_run,
            expected=found(
                "TRN201", module="blocks.0.attention", file=_HERE, says=r"the loss is nan at step 1: .*softmax"
            ),
        ),
    ),
)

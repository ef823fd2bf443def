"""r004 quadratic-attention-memory

Planted in a narrow layer; `nsa-doctor run --select PRF201 --profile smoke --subject
nsa_doctor.regressions.r004_quadratic_attention_memory:planted_in_full` has the reported one.

Reported: 003 as what had been wrong with m7c_125m_fast_log at S=1024; 000 and 002 saw 60 GB and 30 to 60 GB of an
    A100.
Symptom: out of memory; 30 to 60 GB for 125M parameters, which 000 calls efficient and 002 normal.
Cause: the report's "S x S tensor explosion" is too small to explain it, and 2 GB are weights, gradients and Adam's
    state. Established by counting: an S x S tensor of 12 heads at S=1024 is 50 MB, 0.6 GB in 12 layers. At this length
    n_sel · l_sel = S, so every query selects all that is before it, and keys and values gathered per token and kept
    for backward are S²/2 · 64 floats each: 6.4 GB in 12 layers and 2 groups, 39 GB when repeated for 12 heads. "Direct
    gather", which 003 names as the fix, is what makes them.
Check: PRF201, by the exponent of peak memory against the length; 1.5 is what sparse attention may take.
"""

import math
from typing import Any

import torch
from torch import Tensor

from nsa.config import load_config
from nsa.nn import NSAttention
from nsa.ops.geometry import Geometry, slots_to_mask
from nsa_doctor.cases.case import examine, faulty_layer, found, on_cuda
from nsa_doctor.cases.record import Case, Plant
from nsa_doctor.subject.contract import Subject

_CONFIG = "m7c_125m_fast_log"
_SLIM = {"dim": 96, "d_k": 8, "d_v": 8}  # the exponent is what matters: 12 heads in 2 groups, blocks and window stay


def reproduce() -> None:
    config = load_config(_CONFIG).model
    torch.manual_seed(0)
    layer, kept = NSAttention(config), {}
    for length in (512, 1024, 2048):
        sizes: dict[int, int] = {}

        def keep(x: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            output = layer(torch.randn(1, length, config.dim))
        kept[length] = sum(sizes.values())
        del output
    assert kept[2048] - kept[1024] < 2.2 * (kept[1024] - kept[512]), f"bytes kept for backward: {kept}"
    assert kept[1024] * config_layers() < 2 << 30, f"{kept[1024]:,} bytes are kept by one layer at S=1024"


def config_layers() -> int:
    return load_config(_CONFIG).model.n_layers


def scores_every_pair(q: Tensor, k: Tensor, v: Tensor, slots: Tensor, geometry: Geometry, *more: Any) -> Tensor:
    num_queries, num_tokens, heads = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    t = torch.arange(num_tokens - num_queries, num_tokens, device=q.device)[:, None, None]
    hidden = ~(slots_to_mask(slots, num_tokens, geometry) & (torch.arange(num_tokens, device=q.device) <= t))
    k, v, hidden = (x.repeat_interleave(heads, 2) for x in (k, v, hidden))
    scores = torch.einsum("bthd,bshd->bths", q, k) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
    return torch.einsum("bths,bshd->bthd", weights, v)


_SEAMS = {"nsa.ops.select.vectorized.selected_attention": scores_every_pair}


def planted() -> Subject:
    return faulty_layer(_SEAMS, _CONFIG, **_SLIM)


def planted_in_full() -> Subject:
    return faulty_layer(_SEAMS, _CONFIG)


_PLANTED, _IN_FULL = f"{__name__}:planted", f"{__name__}:planted_in_full"
_EXPECTED = found(
    "PRF201",
    file="r004_quadratic_attention_memory.py",
    function="scores_every_pair",
    says=r"grows with the power (1\.[89]|2\.)",
)
CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(name="memory against the length", command=examine(_PLANTED, "PRF201"), expected=_EXPECTED),
        Plant(name="the same on a GPU", command=on_cuda(examine(_IN_FULL, "PRF201")), expected=_EXPECTED),
    ),
)

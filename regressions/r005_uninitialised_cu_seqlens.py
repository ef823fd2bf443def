"""r005 uninitialised-cu-seqlens

Reported: 004, single A100, `sliding_attention_fa2` under NSA_USE_FA2=1; fixed by b2d5ed73.
Symptom: CUDA error, an illegal memory access, in the forward pass.
Cause: `cu_seqlens_q` allocated with `torch.empty` and never filled, as reported. Established: whether it is seen
    depends on what the memory held before, so a run that passes proves nothing; zeros, which fresh memory often holds,
    raise nothing and give sequences without tokens. The same would explain values that are NaN at some lengths only
    (r008), and the report, which found both in one module, rules that out by nothing but the error being gone.
Check: FWD209, which fills what `torch.empty` hands out with this and with that and compares.
"""

import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from nsa.config import load_config
from nsa.nn import NSAttention
from nsa.ops.geometry import Geometry
from nsa.ops.slide import flash, fused
from nsa_doctor.cases.case import examine, faulty_layer, found, on_cuda
from nsa_doctor.cases.record import Case, Plant
from nsa_doctor.subject.contract import Subject

_CONFIG = "m7c_125m_fast_log"
_LENGTHS = (128, 512, 1024, 2048)


def reproduce() -> None:
    geometry = load_config(_CONFIG).model.geometry
    handed: list[tuple[Tensor, int]] = []

    def varlen_attn(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *more: Any, **options: Any) -> Tensor:
        handed.extend(((cu_q, q.shape[0]), (cu_k, k.shape[0])))
        return q

    def flash_varlen(
        q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, **more: Any
    ) -> Tensor:
        handed.extend(((cu_seqlens_q, q.shape[0]), (cu_seqlens_k, k.shape[0])))
        return q

    unfilled = patch("torch.empty", lambda *size, **options: torch.full(size, 1 << 30, **options))
    stand_in = {"flash_attn": SimpleNamespace(flash_attn_varlen_func=flash_varlen)}
    with unfilled, patch("torch.nn.attention.varlen.varlen_attn", varlen_attn), patch.dict(sys.modules, stand_in):
        for length in _LENGTHS:
            q, k = torch.rand(2, length, 12, 64), torch.rand(2, length, 2, 64)
            fused._by_varlen(q, k, k, geometry.w)
            offsets = torch.tensor([0, 7, 7, length], dtype=torch.int32)
            flash.sliding_attention_packed(q[:1], k[:1], k[:1], geometry, offsets, length)
    assert len(handed) == 4 * len(_LENGTHS)
    for offsets, total in handed:
        assert offsets.dtype == torch.int32
        assert int(offsets[0]) == 0, "offsets do not start at 0"
        assert bool((offsets.diff() >= 0).all()), "offsets fall"
        assert int(offsets[-1]) == total, f"offsets end at {int(offsets[-1])} of {total}"
    torch.manual_seed(0)
    layer, x, outputs = NSAttention(load_config(_CONFIG).model), torch.rand(2, 128, 768), []
    for step in (0, 1):
        with patch("torch.empty", lambda *size, step=step, **options: step * torch.arange(size[0], **options)):
            outputs.append(layer(x).detach())
    assert torch.equal(*outputs), "the output depends on memory that nobody wrote"
    for bad in ([1, 64], [0, 40, 20, 64], [0, 1 << 30]):
        try:
            NSAttention(load_config(_CONFIG).model)(torch.rand(1, 64, 768), cu_seqlens=torch.tensor(bad).int())
        except ValueError as error:
            assert "cu_seqlens" in str(error)  # noqa: PT017 (the sentence is what is looked at)
        else:
            raise AssertionError(f"the offsets {bad} are accepted for 64 tokens")


def packs_rows(q: Tensor, k: Tensor, v: Tensor, geometry: Geometry, *more: Any) -> Tensor:
    num_rows, num_queries = q.shape[:2]
    cu_seqlens_k = torch.arange(num_rows + 1, dtype=torch.int32, device=q.device) * k.shape[1]
    cu_seqlens_q = torch.empty(num_rows + 1, dtype=torch.int32, device=q.device)
    rows_q, rows_k, rows_v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2).flatten(0, 1) for x in (q, k, v))
    return attends_packed(rows_q, rows_k, rows_v, cu_seqlens_q, cu_seqlens_k, geometry.w).unflatten(
        0, (num_rows, num_queries)
    )


def attends_packed(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, w: int) -> Tensor:
    """What a kernel for sequences of different lengths computes, by the offsets it is given and nothing else."""
    token_q, token_k = (torch.arange(x.shape[0], device=x.device) for x in (q, k))
    row_q, row_k = (torch.searchsorted(cu, token, right=True) for cu, token in ((cu_q, token_q), (cu_k, token_k)))
    last = cu_k[row_q.clamp(max=len(cu_k) - 1)] - cu_q[row_q.clamp(max=len(cu_q) - 1)]
    age = (token_q + last)[:, None] - token_k
    sees = (row_q[:, None] == row_k) & (age >= 0) & (age < w)
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~sees, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~sees, 0)
    return torch.einsum("hqk,khd->qhd", weights, v)


def offsets_never_filled(rows: int, length: int, device: torch.device) -> Tensor:
    return torch.empty(rows + 1, dtype=torch.int32, device=device)


def planted() -> Subject:
    return faulty_layer({"nsa.ops.slide.vectorized.sliding_attention": packs_rows}, _CONFIG)


def planted_for_the_kernel() -> Subject:
    return faulty_layer({"nsa.ops.slide.fused._offsets": offsets_never_filled}, _CONFIG)


_FILE = "r005_uninitialised_cu_seqlens.py"
CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="a pack of rows with offsets that nobody filled",
            command=examine(f"{__name__}:planted", "FWD209"),
            expected=found("FWD209", file=_FILE, function="packs_rows", says="what memory held before"),
        ),
        Plant(
            name="the same, given to the kernel of a GPU",
            command=on_cuda(examine(f"{__name__}:planted_for_the_kernel", "FWD209", "--dtype", "bfloat16")),
            expected=found("FWD209", file=_FILE, function="offsets_never_filled"),
        ),
    ),
)

"""Scans of gated linear attention.

All take queries, keys and values [B, H, S, d] and log decays [B, H, S], and compute, for every token t,

    memory[t] = exp(log_decay[t]) * memory[t - 1] + key[t] value[t]^T
    out[t] = scale * query[t] memory[t]

and give the outputs and the last memory. They differ in how much they do at once.
"""

import torch
from torch import Tensor

from .config import SCANS
from .flags import scan_name
from .utils import ceil_div, compute_dtype, pad_time, to_chunks


class UnsupportedShape(ValueError):
    """A scan is not made for these shapes; another one is."""


def recurrent_step(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, memory: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """One token: q, k, v [B, H, d], log_decay [B, H]."""
    write = k.unsqueeze(-1) * v.unsqueeze(-2)
    memory = log_decay.exp()[..., None, None] * memory + write
    return scale * torch.einsum("bhd,bhde->bhe", q, memory), memory


def recurrent_scan(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, memory: Tensor, scale: float, chunk: int
) -> tuple[Tensor, Tensor]:
    """Token by token. Slow; what the others are held to."""
    outputs = []
    for t in range(q.shape[2]):
        out, memory = recurrent_step(q[:, :, t], k[:, :, t], v[:, :, t], log_decay[:, :, t], memory, scale)
        outputs.append(out)
    return torch.stack(outputs, dim=2), memory


def _decay_between(cumulative: Tensor) -> Tensor:
    """exp of the sum of log decays from after token j up to token i, zero for j > i, [..., C, C]."""
    size = cumulative.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=cumulative.device).triu(1)
    difference = cumulative.unsqueeze(-1) - cumulative.unsqueeze(-2)
    return difference.masked_fill(later, -torch.inf).exp()


def loop_scan(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, memory: Tensor, scale: float, chunk: int
) -> tuple[Tensor, Tensor]:
    """Chunk by chunk, the last one as short as it is."""
    outputs = []
    for start in range(0, q.shape[2], chunk):
        part = slice(start, start + chunk)
        qc, kc, vc = q[:, :, part] * scale, k[:, :, part], v[:, :, part]
        cumulative = log_decay[:, :, part].cumsum(-1)
        within = (qc @ kc.mT) * _decay_between(cumulative)
        carried = (qc * cumulative.exp().unsqueeze(-1)) @ memory
        outputs.append(within @ vc + carried)
        to_end = (cumulative[..., -1:] - cumulative).exp().unsqueeze(-1)
        memory = cumulative[..., -1].exp()[..., None, None] * memory + (kc * to_end).mT @ vc
    return torch.cat(outputs, dim=2), memory


def parallel_scan(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, memory: Tensor, scale: float, chunk: int
) -> tuple[Tensor, Tensor]:
    """All chunks at once, but for the memories that pass between them. Needs two whole chunks at least."""
    length = q.shape[2]
    if length < 2 * chunk:
        raise UnsupportedShape(f"{length} tokens are fewer than two chunks of {chunk}")
    pad = ceil_div(length, chunk) * chunk - length
    q, k, v = (to_chunks(pad_time(x, pad), chunk) for x in (q * scale, k, v))
    log_decay = to_chunks(pad_time(log_decay, pad), chunk)
    cumulative = log_decay.cumsum(-1)
    within = (q @ k.mT) * _decay_between(cumulative)
    to_end = (cumulative[..., -1:] - cumulative).exp().unsqueeze(-1)
    written = (k * to_end).mT @ v
    total = cumulative[..., -1].exp()[..., None, None]
    before = []
    for index in range(q.shape[2]):
        before.append(memory)
        memory = total[:, :, index] * memory + written[:, :, index]
    carried = (q * cumulative.exp().unsqueeze(-1)) @ torch.stack(before, dim=2)
    return (within @ v + carried).flatten(2, 3)[:, :, :length], memory


_BY_NAME = {"parallel": parallel_scan, "loop": loop_scan, "recurrent": recurrent_scan}


def gated_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    memory: Tensor | None,
    *,
    chunk: int,
    configured: str = "auto",
) -> tuple[Tensor, Tensor]:
    """The scan that the environment or the configuration names; "auto" is the widest one that fits.

    Computes in float32 at least; the outputs have the dtype of `v`, the memory that of computation.
    """
    wide = compute_dtype(v)
    scale = q.shape[-1] ** -0.5
    if memory is None:
        memory = v.new_zeros(v.shape[0], v.shape[1], k.shape[-1], v.shape[-1], dtype=wide)
    arguments = (q.to(wide), k.to(wide), v.to(wide), log_decay.to(wide), memory)
    name = scan_name(configured, SCANS)
    if name != "auto":
        try:
            out, memory = _BY_NAME[name](*arguments, scale, chunk)
        except UnsupportedShape:
            out, memory = loop_scan(*arguments, scale, chunk)
        return out.to(v.dtype), memory
    try:
        out, memory = parallel_scan(*arguments, scale, chunk)
    except UnsupportedShape:
        out, memory = loop_scan(*arguments, scale, chunk)
    return out.to(v.dtype), memory

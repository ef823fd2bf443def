"""r008 nan-at-512-and-2048

Tried in a narrow layer, planted in one with one head and few tokens to read. In the reported size: `nsa-doctor sweep
--config m7c_125m_fast_log --seq 128,512,1024,2048`, and the same with `--subject` in place of `--config`, which is
nsa_doctor.regressions.r008_nan_at_512_and_2048:planted_in_full or :planted_in_training_in_full.

Reported: 004, single A100, m7c_125m geometry, one run at each of S = 128, 512, 1024 and 2048.
Symptom: S=128 and 1024 finite (losses 5.64 and 5.74), S=512 and 2048 NaN in the forward pass. The same report says
    that inference was finite at S=2048 and that at S=512 backward raised, which takes a forward pass.
Cause: unknown; "instability at block boundaries" is a guess, and wrong. Established by trying them all: 128, 512, 1024
    and 2048 are multiples of every block size (16, 32, 64) alike, no threshold separates them, and of all periods up
    to 2,048 only 768 and 1,536 put 512 and 2048 in one class and the others in none: 768 is the model's width, and no
    block's. So it is no block boundary; a rule of two parts, the data, the seed, or memory that nobody wrote (r005 was
    in the same code) would all do, and four runs that were not repeated cannot tell. Here every length and mode is
    finite.
Check: NAN101 where all modes are NaN, NAN103 where one is, each with lengths, branch and line.
"""

from typing import Any

import torch
from torch import Tensor

from nsa.config import load_config
from nsa.nn import NSAttention
from nsa.ops.compress import vectorized as compress
from nsa.ops.geometry import Geometry
from nsa.ops.slide import vectorized as slide
from nsa_doctor.cases.case import faulty_layer, found
from nsa_doctor.cases.record import Case, Plant
from nsa_doctor.subject.contract import Subject

_CONFIG = "m7c_125m_fast_log"
_SLIM = {"dim": 48, "n_heads": 4, "d_k": 4, "d_v": 4}  # lengths are what matters: blocks, window and 2 groups stay
# What is planted goes by the length alone; a trace takes its time for each head, block and tile of the window.
_FEW = _SLIM | {"n_heads": 1, "n_kv_groups": 1, "l": 64, "d": 64, "l_sel": 128, "n_sel": 3, "w": 64}
_LENGTHS = (128, 512, 1024, 2048)
_COMPRESS, _SLIDE = compress.compressed_attention, slide.sliding_attention


def reproduce() -> None:
    apart = [period for period in range(2, 2049) if 512 % period == 2048 % period not in (128 % period, 1024 % period)]
    assert apart == [768, 1536], "the pattern's periods are others than the docstring says"
    config = load_config(_CONFIG).model.model_copy(update=_SLIM)
    torch.manual_seed(0)
    layer = NSAttention(config)
    for length in _LENGTHS:
        x = torch.randn(1, length, config.dim)
        for is_training in (True, False):
            layer.train(is_training).zero_grad()
            with torch.set_grad_enabled(is_training):
                output = layer(x)  # no weight of a gate takes what is not finite out of a branch
            if is_training:
                output.square().mean().backward()
            tensors = [output, *(p.grad for p in layer.parameters() if p.grad is not None)]
            assert all(bool(value.isfinite().all()) for value in tensors), f"not finite at S={length}, {is_training=}"


def leaves_a_tile_unmasked(
    q: Tensor, k: Tensor, v: Tensor, geometry: Geometry, first: int, *more: Any
) -> tuple[Tensor, Tensor | None]:
    out, slots = _COMPRESS(q, k, v, geometry, first, *more)
    if q.shape[1] % 768 != 512:
        return out, slots
    hidden = torch.full(out.shape[:2], -torch.inf)[..., None].expand(-1, -1, 4).softmax(-1).sum(-1)
    return out + hidden[..., None, None], slots


def overflows_in_training(q: Tensor, k: Tensor, v: Tensor, geometry: Geometry, *more: Any) -> Tensor:
    out = _SLIDE(q, k, v, geometry, *more)
    if not torch.is_grad_enabled() or q.shape[1] < 2048:
        return out
    weight = (out.detach().abs().amax(-1, keepdim=True) * 1e3 + 90).exp()
    return out * (weight / weight)


_EVERYWHERE = {"nsa.ops.compress.vectorized.compressed_attention": leaves_a_tile_unmasked}
_IN_TRAINING = {"nsa.ops.slide.vectorized.sliding_attention": overflows_in_training}


def planted() -> Subject:
    return faulty_layer(_EVERYWHERE, _CONFIG, **_FEW)


def planted_in_training() -> Subject:
    return faulty_layer(_IN_TRAINING, _CONFIG, **_FEW)


def planted_in_full() -> Subject:
    return faulty_layer(_EVERYWHERE, _CONFIG)


def planted_in_training_in_full() -> Subject:
    return faulty_layer(_IN_TRAINING, _CONFIG)


_FILE = "r008_nan_at_512_and_2048.py"


def _sweep(name: str) -> list[str]:
    lengths = ",".join(map(str, _LENGTHS))
    return ["sweep", "--forward-only", "--seq", lengths, "--subject", f"{__name__}:{name}"]


CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(
            name="at two lengths, in every mode",
            command=lambda folder: _sweep("planted"),
            expected=found("NAN101", file=_FILE, function="leaves_a_tile_unmasked", says="512 and 2048"),
        ),
        Plant(
            name="at one length, in training",
            command=lambda folder: _sweep("planted_in_training"),
            expected=found("NAN103", file=_FILE, function="overflows_in_training", says="2048"),
        ),
    ),
)

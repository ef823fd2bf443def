"""The built-in subject: one NSAttention layer of `nsa` at a configuration."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa.backends import route
from nsa.config import NSAConfig, load_config
from nsa.nn import NSAttention
from nsa.ops import geometry as nsa_geometry
from nsa_doctor.adapters import nsa_alternatives as nsa_relatives
from nsa_doctor.adapters import nsa_anatomy, nsa_decode, nsa_equations
from nsa_doctor.core.lengths import LARGEST_LENGTH
from nsa_doctor.subject.contract import Subject

DEFAULT_CONFIG = "m7c_125m_fast_log"


def builtin_subject(source: str | None = None) -> Subject:
    """One layer at a configuration file or built-in name; raises nsa.ConfigError with one sentence."""
    subject = layer_subject(load_config(source or DEFAULT_CONFIG).model, f"nsa ({source or DEFAULT_CONFIG})")
    return subject if source is None else replace(subject, options=("--config", source))


def layer_subject(config: NSAConfig, name: str = "nsa") -> Subject:
    """One layer at a configuration already read."""
    geometry = config.geometry
    return Subject(
        name=name,
        configuration=config.model_dump(mode="json"),
        description=f"one NSAttention layer, dim {config.dim}, {config.n_heads} heads in {config.n_kv_groups} groups",
        build=lambda seed: _build(config, seed),
        forward=_forward,
        branches=_branches,
        attend=lambda q, k, v, slots: nsa_anatomy.attend(q, k, v, slots, geometry),
        select=lambda importance, first_query: nsa_anatomy.select(importance, first_query, geometry),
        choose=nsa_anatomy.choose,
        gate=_gate,
        prefill=nsa_decode.prefill,
        step=nsa_decode.step,
        fill_unwritten=nsa_decode.fill_unwritten,
        cache_bytes=nsa_decode.cache_bytes,
        cache_reads=nsa_decode.cache_reads,
        packed=_packed,
        variants=lambda seed: nsa_relatives.variants(config, seed),
        oracle=nsa_equations.oracle,
        anatomy=nsa_anatomy.anatomy,
        twins=lambda device, dtype: nsa_relatives.twins(config, device, dtype),
        spans=lambda: nsa_geometry,
        input="embeddings",
        width=config.dim,
        geometry=geometry,
        max_length=max(geometry.w, geometry.n_sel * geometry.l_sel) + geometry.l_sel,
        longest=LARGEST_LENGTH,
        packages=("nsa",),
        is_choice_canonical=True,
        memory_exponent=1.5,
        max_slowdown=60.0,
        routes=lambda flags: _routes(config, flags),
    )


def _build(config: NSAConfig, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return NSAttention(config)


def _forward(module: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = module(x)
    return output


def _branches(module: nn.Module, x: Tensor) -> Mapping[str, Tensor]:
    assert isinstance(module, NSAttention)
    inner = module.branches(x)
    return {name: getattr(inner, name) for name in ("compressed", "selected", "sliding", "gated")}


def _gate(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, NSAttention)
    return module.branches(x).gates


def _packed(module: nn.Module, x: Tensor, cu_seqlens: Tensor) -> Tensor:
    output: Tensor = module(x, cu_seqlens=cu_seqlens)
    return output


def _routes(config: NSAConfig, flags: Mapping[str, str]) -> Mapping[str, bool]:
    """What flash-attn serves on the best device of this machine, in the dtype it serves."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return route(device, torch.bfloat16, max(config.d_k, config.d_v), flags=flags).fa2_effective()

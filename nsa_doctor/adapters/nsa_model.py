"""The whole language model of `nsa` as a subject: token ids in, logits out, by two layers of a configuration."""

from functools import wraps

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, silu

from nsa.config import ModelConfig, load_config
from nsa.nn import NSACache, Transformer, generate
from nsa.nn import prefill as fill
from nsa_doctor.adapters import nsa_equations
from nsa_doctor.core.lengths import LARGEST_LENGTH
from nsa_doctor.subject.contract import Subject

_CONFIG = "train_showcase"
_FEWEST_LAYERS = 2  # one would not show what a second makes of the first


def builtin_model() -> Subject:
    """`nsa-doctor run --subject nsa-model`: the showcase's model, with a second layer."""
    return model_subject(load_config(_CONFIG).model, f"nsa-model ({_CONFIG})")


def model_subject(config: ModelConfig, name: str = "nsa-model") -> Subject:
    """A Transformer of at least two layers at a configuration already read."""
    deep = config.model_copy(update={"n_layers": max(_FEWEST_LAYERS, config.n_layers)})
    geometry = deep.geometry
    return Subject(
        name=name,
        configuration=deep.model_dump(mode="json"),
        description=f"a Transformer of {deep.n_layers} layers, dim {deep.dim}, {deep.vocab_size} token ids",
        build=lambda seed: _build(deep, seed),
        forward=_forward,
        loss=_loss,
        train_step=_train_step,
        prefill=_prefill,
        step=_step,
        fill_unwritten=_fill_unwritten,
        cache_bytes=_cache_bytes,
        packed=_packed,
        generate=_generate,
        draw=_draw,
        oracle=oracle,
        input="tokens",
        width=deep.vocab_size,
        geometry=geometry,
        max_length=max(geometry.w, geometry.n_sel * geometry.l_sel) + geometry.l_sel,
        longest=LARGEST_LENGTH,
        packages=("nsa",),
        memory_exponent=1.5,
        max_slowdown=60.0,
    )


def oracle(module: nn.Module, ids: Tensor) -> Tensor:
    """Logits [B, S, vocab_size] by the equations: pre-norm blocks of attention and SwiGLU, a norm, the head."""
    assert isinstance(module, Transformer)
    weight, eps = dict(module.named_parameters()), module.config.norm_eps
    x = weight["embedding.weight"][ids]
    for index, block in enumerate(module.blocks):
        part = f"blocks.{index}"
        attention: nn.Module = block.attention  # type: ignore[assignment]
        x = x + nsa_equations.oracle(attention, _normed(x, weight[f"{part}.attention_norm.weight"], eps))
        both = _normed(x, weight[f"{part}.mlp_norm.weight"], eps) @ weight[f"{part}.mlp.gate_up.weight"].T
        half = both.shape[-1] // 2
        x = x + (silu(both[..., :half]) * both[..., half:]) @ weight[f"{part}.mlp.down.weight"].T
    head = weight.get("head.weight", weight["embedding.weight"])
    return _normed(x, weight["norm.weight"], eps) @ head.T


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) / x.shape[-1] + eps).sqrt() * weight


def _build(config: ModelConfig, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Transformer(config)


def _forward(module: nn.Module, ids: Tensor) -> Tensor:
    logits: Tensor = module(ids)
    return logits


def _loss(module: nn.Module, ids: Tensor) -> Tensor:
    return cross_entropy(module(ids[:, :-1]).mT, ids[:, 1:])


def _train_step(module: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss = _loss(module, ids)
    loss.backward()
    optimizer.step()
    return loss.detach()


@torch.no_grad()
def _prefill(module: nn.Module, ids: Tensor) -> tuple[Tensor, list[NSACache]]:
    assert isinstance(module, Transformer)
    cache = module.new_cache(ids.shape[0])
    return fill(module, ids, cache), cache


@torch.no_grad()
def _step(module: nn.Module, ids: Tensor, cache: list[NSACache]) -> tuple[Tensor, list[NSACache]]:
    return module(ids, cache), cache


def _fill_unwritten(cache: list[NSACache], value: float) -> None:
    for layer in cache:
        layer.fill_unwritten(value)


def _cache_bytes(cache: list[NSACache]) -> int:
    return sum(layer.num_bytes() for layer in cache)


@wraps(generate)
def _generate(module: nn.Module, ids: Tensor, num_tokens: int) -> Tensor:
    assert isinstance(module, Transformer)
    return generate(module, ids, num_tokens)


@wraps(generate)
def _draw(module: nn.Module, ids: Tensor, temperature: float, seed: int) -> Tensor:
    assert isinstance(module, Transformer)
    chance = torch.Generator(ids.device).manual_seed(seed)
    return generate(module, ids, 1, temperature=temperature, generator=chance)


def _packed(module: nn.Module, ids: Tensor, cu_seqlens: Tensor) -> Tensor:
    logits: Tensor = module(ids, cu_seqlens=cu_seqlens)
    return logits

"""An NSAttention layer by the equations of arXiv 2502.11089 alone: dense products under explicit masks.

It takes the layer's weights and sizes and nothing else from `nsa`: a mistake there cannot be in here too. Slow, and of
memory that grows with the square of the length.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softmax

from nsa.config import NSAConfig
from nsa.nn import NSAttention
from nsa_doctor.probes.attention.equations import branch_outputs, mixed
from nsa_doctor.subject.geometry_rules import Rules


def oracle(module: nn.Module, x: Tensor) -> Tensor:
    """[B, S, dim]: Eq. 5 of a layer's own weights."""
    assert isinstance(module, NSAttention)
    config, weight = module.config, dict(module.named_parameters())
    rules = Rules(l=config.l, d=config.d, l_sel=config.l_sel, n_sel=config.n_sel, w=config.w)
    q = _heads(x, weight["qkv.q"], config.d_k)
    rotated = {name: _rotated(value, config.rope_theta) for name, value in (("q", q), *_keys(x, weight, config))}
    values = dict(_values(x, weight, config))
    operands = {
        **rotated,
        **values,
        "k_cmp": _compressed(rotated["k_cmp"], weight, "compress_k", config, rules),
        "v_cmp": _compressed(values["v_cmp"], weight, "compress_v", config, rules),
        "gates": _gates(q, weight, config),
    }
    gated = mixed(branch_outputs(operands, rules), operands["gates"])
    return gated.flatten(2) @ weight["out_proj.weight"].T


def _keys(x: Tensor, weight: Mapping[str, Tensor], config: NSAConfig) -> list[tuple[str, Tensor]]:
    suffix = "" if config.shared_kv else "_{}"
    names = [(f"k_{name}", f"qkv.k{suffix.format(name)}") for name in ("cmp", "sel", "win")]
    return [(name, _heads(x, weight[source], config.d_k)) for name, source in names]


def _values(x: Tensor, weight: Mapping[str, Tensor], config: NSAConfig) -> list[tuple[str, Tensor]]:
    suffix = "" if config.shared_kv else "_{}"
    names = [(f"v_{name}", f"qkv.v{suffix.format(name)}") for name in ("cmp", "sel", "win")]
    return [(name, _heads(x, weight[source], config.d_v)) for name, source in names]


def _heads(x: Tensor, weight: Tensor, size: int) -> Tensor:
    return (x @ weight.T).unflatten(-1, (-1, size))


def _rotated(x: Tensor, theta: float) -> Tensor:
    """Channel pair j of token t as a complex number, times exp(i · t · theta^(−2j/size))."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))  # torch has no complex numbers of half precision
    pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)).contiguous())
    speed = torch.tensor([theta ** (-2 * j / x.shape[-1]) for j in range(x.shape[-1] // 2)], dtype=torch.float64)
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * speed
    turn = torch.polar(torch.ones_like(angle), angle).to(device=x.device, dtype=pairs.dtype)
    return torch.view_as_real(pairs * turn[:, None]).flatten(-2).to(x.dtype)


def _compressed(x: Tensor, weight: Mapping[str, Tensor], name: str, config: NSAConfig, rules: Rules) -> Tensor:
    """Eq. 7: one token for each complete block, [B, S, G, D] -> [B, C, G, D]."""
    count = rules.num_compressed(x.shape[1])
    index = torch.tensor([list(rules.compressed_tokens(block)) for block in range(count)], dtype=torch.int64)
    blocks = x[:, index.view(count, rules.l).to(x.device)].transpose(2, 3)  # [B, C, G, l, D]
    own = {part: weight.get(f"{name}.{part}") for part in ("position", "w1", "b1", "w2", "b2", "kernel", "w", "b")}

    def linear(value: Tensor, matrix: str, bias: str) -> Tensor:
        product = value @ _known(own[matrix]).T
        return product if (added := own[bias]) is None else product + added

    if config.phi == "mlp":
        flat = (blocks + _known(own["position"])).flatten(-2)
        return linear(silu(linear(flat, "w1", "b1")), "w2", "b2")
    if config.phi == "conv":
        return linear((blocks * _known(own["kernel"]).T).sum(-2), "w", "b")
    return blocks.sum(-2) / rules.l


def _gates(q: Tensor, weight: Mapping[str, Tensor], config: NSAConfig) -> Tensor:
    mean = q.unflatten(2, (config.n_kv_groups, -1)).sum(3) / (config.n_heads // config.n_kv_groups)
    hidden = silu(mean @ weight["gate.fc1.weight"].T + weight["gate.fc1.bias"])
    logits = hidden @ weight["gate.fc2.weight"].T + weight["gate.fc2.bias"]
    if config.gate == "sigmoid":
        return 1 / (1 + torch.exp(-logits))
    return softmax(logits / config.gate_temperature, dim=-1)


def _known(weight: Tensor | None) -> Tensor:
    assert weight is not None
    return weight

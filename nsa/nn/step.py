"""One token of every row through one layer by the kernels of decoding, and why a layer does not go that way."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from nsa.backends import Impl, route, why_not_triton
from nsa.config import NSAConfig
from nsa.nn.cache import NSACache
from nsa.nn.compressor import Compressor
from nsa.nn.gate import Gate
from nsa.nn.internal import runs_forward_alone
from nsa.nn.projection import Projection
from nsa.ops.decode.memory import GateParameters, StepMemory, why_too_long


class StepParts(NamedTuple):
    """What of a layer a step takes."""

    config: NSAConfig
    impl: Impl
    qkv: Projection
    gate: Gate
    compress_k: Compressor
    compress_v: Compressor


def why_not_stepped(layer: StepParts, x: Tensor, cache: NSACache) -> str | None:
    """Why the kernels of decoding cannot take the token `x` [B, 1, dim] after those of the cache, or None if they can.

    What does not change between the steps of one cache is asked before the first.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return "the kernels of decoding serve inference, uncompiled"
    if cache.counts_reads:
        return "plain torch alone counts reads"
    if cache.records_past:
        return "plain torch alone records the past"
    modules = {"qkv": layer.qkv, "gate": layer.gate, "compress_k": layer.compress_k, "compress_v": layer.compress_v}
    known = {"qkv": Projection, "gate": Gate, "compress_k": Compressor, "compress_v": Compressor}
    for name, module in modules.items():
        if type(module) is not known[name] or not runs_forward_alone(module):
            return f"{name} is more than a {known[name].__name__}: the kernels of decoding compute in its place"
    for name, linear in {"gate.fc1": layer.gate.fc1, "gate.fc2": layer.gate.fc2}.items():
        if type(linear) is not nn.Linear or not runs_forward_alone(linear):
            return f"{name} is more than a Linear: the kernels of decoding compute in its place"
    autocast = torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if autocast else layer.qkv.dtype
    if cache.kind != (dtype, x.device) or cache.batch != x.shape[0]:
        return "the cache holds no token of this kind yet"
    if cache.is_stepping:
        return None
    return _why_not_served(layer, dtype, x.device, cache)


def _why_not_served(layer: StepParts, dtype: torch.dtype, device: torch.device, cache: NSACache) -> str | None:
    size = max(layer.config.d_k, layer.config.d_v)
    if not all(weight.is_contiguous() for weight in (*layer.qkv.weights(), *layer.gate.parameters())):
        return "weights are not contiguous, as the kernels of decoding read them"
    if layer.impl not in ("auto", "triton"):
        return f"impl={layer.impl!r} is asked for by name"
    no_kernel = why_not_triton(device, dtype, size)
    if no_kernel is not None:
        return no_kernel
    compressed = route(device, dtype, size, layer.impl).compressed
    if compressed.effective != "triton":
        return f"{compressed.effective} serves the compressed branch: {compressed.why}"
    return why_too_long(2 * max(cache.length, cache.capacity), size)


def step(layer: StepParts, x: Tensor, cache: NSACache) -> Tensor:
    """The gated mix [B, 1, H·Dv] of the branches for one token of every row, which the cache takes in.

    It is written over by the next step. Nothing waits for the device.
    """
    # Where there is no Triton no route leads here.
    from nsa.ops.decode import token, triton

    config = layer.config
    memory = cache.step_memory(config.n_heads, 1 if config.shared_kv else 3, config.rope_theta)
    parameters = gate_parameters(layer.gate)
    averages = config.phi == "avg"
    token.project(memory, x, layer.qkv.weights())
    token.add_token(memory, parameters, averages=averages)
    if not averages and (_is_captured(x) or _is_due(cache)):
        _emit(layer, memory)
    out = triton.attend(memory, parameters)
    cache.stepped()
    return out


def gate_parameters(gate: Gate) -> GateParameters:
    """What the kernels take of a gate."""
    return GateParameters(
        gate.fc1.weight, gate.fc1.bias, gate.fc2.weight, gate.fc2.bias,
        temperature=gate.temperature if gate.kind == "softmax" else None,
        alone=gate.alone,
    )  # fmt: skip


def _is_captured(x: Tensor) -> bool:
    """Whether launches are recorded for other steps too, which the host then knows nothing of."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _is_due(cache: NSACache) -> bool:
    """Whether the next token ends a compressed block."""
    return cache.geometry.num_compressed(cache.length + 1) > cache.geometry.num_compressed(cache.length)


def _emit(layer: StepParts, memory: StepMemory) -> None:
    """Add the compressed token of the block that the step's token ends, if it ends one: decided on the device."""
    geometry = memory.geometry
    num_tokens = memory.count[1:].long() + 1
    oldest_first = (num_tokens + torch.arange(geometry.l, device=num_tokens.device)) % geometry.l
    past = num_tokens - geometry.l
    is_due, at = (past >= 0) & (past % geometry.d == 0), (past // geometry.d).clamp(min=0)
    for compress, ring, held in (
        (layer.compress_k, memory.k_new, memory.k_cmp),
        (layer.compress_v, memory.v_new, memory.v_cmp),
    ):
        made = compress(ring.index_select(2, oldest_first).transpose(1, 2)).transpose(1, 2)
        held.index_copy_(2, at, torch.where(is_due, made, held.index_select(2, at)))

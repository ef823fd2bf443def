"""A model's step for one token of every row, captured as a CUDA graph and replayed: one launch for all its kernels."""

import torch

from nsa.nn.attention import NSAttention
from nsa.nn.cache import NSACache
from nsa.nn.internal import runs_forward_alone
from nsa.nn.transformer import Transformer
from nsa.types import TokenIds


class StepGraph:
    """Called with ids [B, 1], gives the logits [B, vocab] behind them and adds them to the caches, as the model would.

    The logits are written over by the next call. One such step must have been taken before: it compiles the kernels.
    Steps of the same weights alone: their values may change, not where they lie. Raises ValueError when the caches are
    full, since other memory was not captured.
    """

    def __init__(self, model: Transformer, cache: list[NSACache], ids: TokenIds) -> None:
        self._cache, self._ids, self._graph = cache, ids.clone(), torch.cuda.CUDAGraph()
        marks = [layer.mark() for layer in cache]
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):  # other threads may load batches
            self._logits = model(self._ids, cache)[:, 0]
        for layer, mark in zip(cache, marks, strict=True):
            layer.go_back(mark)  # recorded, not run

    def __call__(self, ids: TokenIds) -> torch.Tensor:
        for layer in self._cache:
            if layer.length >= layer.capacity:
                raise ValueError(f"cache must have room for another token, got {layer.length} of {layer.capacity}")
        self._ids.copy_(ids)
        self._graph.replay()
        for layer in self._cache:
            layer.stepped()
        return self._logits


def why_not_captured(model: Transformer, cache: list[NSACache], ids: TokenIds) -> str | None:
    """Why steps of the model from ids [B, 1] on cannot be captured, or None when they can."""
    if not ids.is_cuda:
        return f"a CUDA graph needs a CUDA device, got {ids.device.type}"
    if torch.is_autocast_enabled("cuda"):
        return "autocast keeps copies of weights outside of a graph"
    for name, module in model.named_modules():
        if not runs_forward_alone(module):
            return f"{name or 'the model'} has hooks or is compiled, which a replay would leave out"
    token = model.embedding(ids)
    attentions = [module for module in model.modules() if isinstance(module, NSAttention)]
    for attention, layer in zip(attentions, cache, strict=True):
        why = attention.why_not_stepped(token, layer)
        if why is not None:
            return why
    return None

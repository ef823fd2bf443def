"""A causal language model that is called with token ids and keywords: masks, positions, a cache."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

# What a model answers its cache under, and takes it by: `cache` since transformers 5.24.
CACHES = ("cache", "past_key_values", "cache_params", "state", "mems", "past_buckets_states")


@dataclass(frozen=True, kw_only=True, eq=False)
class LanguageModel:
    """One built model and what its forward takes.

    build(**changes): the same model again with the same weights, in another implementation ("attn_implementation").
    narrow(): the same in float32, where this is float64. accepts: names of its forward's parameters. takes_more: any
    other keyword too. tokens: ids are drawn from this range, so that no special one is among them. first_position: the
    position_ids of a first token; None where positions are not given. packs: whether sequences may lie one behind the
    other in a row. lines: Python that builds the same model as `module`, for a script.
    """

    name: str
    module: nn.Module
    dtype: str
    accepts: frozenset[str]
    takes_more: bool
    tokens: tuple[int, int]
    cache: str | None = None
    pad: int = 0
    first_position: int | None = None
    is_bidirectional: bool = False
    packs: bool = True
    build: Callable[..., nn.Module] | None = None
    narrow: Callable[[], "LanguageModel"] | None = None
    implementations: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    lines: tuple[str, ...] = ()

    def ids(self, length: int, rows: int = 1, seed: int = 0) -> Tensor:
        """Ordinary tokens [B, S], none twice in a row: a choice among equal ones may fall on either."""
        generator, (first, end) = torch.Generator().manual_seed(seed), self.tokens
        return torch.stack([first + torch.randperm(end - first, generator=generator)[:length] for _ in range(rows)])

    def answer(self, ids: Tensor, *, module: nn.Module | None = None, **named: Any) -> Any:
        """What the model answers to ids and those keywords that its forward takes; no cache unless asked for."""
        named = {name: value for name, value in named.items() if self.takes(name)}
        if "use_cache" in self.accepts:
            named.setdefault("use_cache", False)
        return (module or self.module)(input_ids=ids, **named)

    def logits(self, ids: Tensor, *, module: nn.Module | None = None, **named: Any) -> Tensor:
        """Logits [B, S, V]."""
        return logits_of(self.answer(ids, module=module, **named))

    def cache_in(self, answer: Any) -> Any:
        """The cache in what the model answers, or None."""
        return None if self.cache is None else getattr(answer, self.cache, None)

    def takes(self, name: str) -> bool:
        """Whether its forward has a parameter of this name, or takes any."""
        return name in self.accepts or self.takes_more


def packing_marks(lengths: Sequence[int], first: int = 0) -> dict[str, Any]:
    """What a flattening collator says of sequences in one row: positions that restart, and where each begins."""
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    positions = first + torch.cat([torch.arange(length) for length in lengths])[None]
    row = torch.arange(len(lengths), dtype=torch.int32).repeat_interleave(torch.tensor(lengths))[None]
    flattened = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts}
    longest = {"max_length_q": max(lengths), "max_length_k": max(lengths)}
    return {"position_ids": positions, "seq_idx": row, **flattened, **longest}


def logits_of(answer: Any) -> Tensor:
    """The logits of what a model answers."""
    logits: Tensor = answer.logits if hasattr(answer, "logits") else answer[0]
    return logits

"""What is examined: a frozen bundle of seams, each a callable or None."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from nsa_doctor.lengths import ChangesAtLengths

InputKind = Literal["embeddings", "tokens"]


class WrongOutputError(ValueError):
    """A subject returned something other than the tensor it owes; the message says what came and what was expected."""


class SubjectUnusableError(ValueError):
    """A subject or configuration that cannot be examined at all; one sentence says what would be right."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The seams through which checks reach an implementation; `replace(subject, seam=sick)` plants a bug.

    Checks examine it up to `max_length`, with weights and inputs of `seed`. `packages` are top-level packages whose
    lines count as the subject's own even when they are installed; `options` are the words that name this subject on the
    command line. A seam is called exactly as listed here; one that is None is not offered, and checks that need it are
    skipped.

    build(seed): a fresh module in `dtype` on the CPU, reproducible from the seed (also seeded globally before).
    forward(module, x): [B, S, ...], or what holds it, for x [B, S, width] (embeddings) or ids x [B, S] (tokens).
    branches(module, x): the same call's inner tensors by name, each [B, S, ...]; only for looking at.
    attend(q, k, v, slots): the attention operator alone, q [B, T, H, Dk], k [B, S, G, Dk], v [B, S, G, Dv].
    select(importance, first_query): slots [B, T, G, n] chosen from block importance.
    gate(module, query_mean): branch weights [B, T, G, 3].
    prefill(module, x): (output, cache) of a prompt; step(module, x, cache): (output, cache) of the next tokens.
    loss(module, ids): the scalar a training step differentiates.
    oracle(module, x): the output by an independent, slow and trusted way.
    """

    name: str
    build: Callable[[int], nn.Module]
    forward: Callable[[nn.Module, Tensor], Any]
    input: InputKind
    width: int
    dtype: str = "float32"
    description: str = ""
    geometry: ChangesAtLengths | None = None
    max_length: int = 2048
    seed: int = 0
    packages: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    branches: Callable[[nn.Module, Tensor], Mapping[str, Tensor]] | None = None
    attend: Callable[..., Tensor] | None = None
    select: Callable[..., Tensor] | None = None
    gate: Callable[[nn.Module, Tensor], Tensor] | None = None
    prefill: Callable[[nn.Module, Tensor], tuple[Tensor, Any]] | None = None
    step: Callable[[nn.Module, Tensor, Any], tuple[Tensor, Any]] | None = None
    loss: Callable[[nn.Module, Tensor], Tensor] | None = None
    oracle: Callable[[nn.Module, Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.input not in ("embeddings", "tokens"):
            raise ValueError(f"input must be 'embeddings' or 'tokens', got {self.input!r}")
        if self.width < 1:
            raise ValueError(f"width must be at least 1 (dim of embeddings, or vocabulary of tokens), got {self.width}")

    def offers(self, seam: str) -> bool:
        """Whether the seam is there."""
        return getattr(self, seam) is not None

"""What is examined: a frozen bundle of seams, each a callable or None."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Profile
from nsa_doctor.core.declared import declarations
from nsa_doctor.core.environment import Environment
from nsa_doctor.core.lengths import ChangesAtLengths
from nsa_doctor.core.measurement import MODES, Measurement, Mode
from nsa_doctor.core.pace import Pace
from nsa_doctor.subject.training_loop import StepOfLoop, TrainingLoop

InputKind = Literal["embeddings", "tokens"]


@dataclass(frozen=True)
class Asked:
    """How a module was asked for what it answered with a tensor of `shape` for `length` tokens, which is wrong."""

    again: Callable[[nn.Module], object]
    packages: tuple[str, ...]
    length: int
    shape: torch.Size


class WrongOutputError(ValueError):
    """A subject returned something other than the expected tensor; the message says what came and what was expected.

    Where that was a tensor, `asked` says how to ask for it again.
    """

    def __init__(self, message: str, asked: "Asked | None" = None) -> None:
        super().__init__(message)
        self.asked = asked


AnswerSize = tuple[int | str, ...]  # a shape behind the rows: "S" is an axis of tokens


class SubjectUnusableError(ValueError):
    """A subject or configuration that cannot be examined at all; one sentence says what would be right."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The seams through which checks reach an implementation; `replace(subject, seam=faulty)` plants a bug.

    Checks examine it up to `max_length` on `device` (one looks at a single sequence of up to `longest`, where that is
    more), as thoroughly as `profile` says, with weights and inputs of
    `seed`, in `modes` alone, and those that look at gradients at `lengths` alone where any are given; a call may take
    `timeout` seconds (None: any time). `packages` are top-level packages whose lines count as the subject's own even
    when they are installed; `options` are the words that name this subject on the command line, `notes` what was found
    out about it. A seam is called exactly as listed here; one that is None is not offered, and checks that need it are
    skipped. `configuration` is what it was made from, as plain data: two subjects with equal ones are the same in the
    eyes of a verdict. `spec` are words for what it is meant to be (`core.declared.Declaration`): "bidirectional".
    `memory_exponent` and `time_exponent` say how the method's peak memory and time grow with the length; None is a
    dense method, whose square is right (and 1.5 for memory where there is a `geometry`). `max_slowdown` is how many
    times as long as plain dense attention of the same width a training step may take; None sets no floor. `environment`
    replaces the facts of this machine.
    `call_seconds` are (length, seconds) of the forward passes that were made to find out how long a sequence it serves,
    `seen` those of them that raised where it has to serve, and `whole_multiples_of` a number of tokens of which it
    serves whole multiples alone: `forward` fills up what is shorter. `answer` is where in the module's answer, and of
    which shape, what `forward` makes [B, S, D] of stands, where the module itself gives none such. `output_width` is
    how wide its output was where not `is_width_kept` and that was found out. `filler_ids` are tokens of which no
    sequence consists alone, as padding.

    build(seed): a fresh module in `dtype` on the CPU, reproducible from the seed (also seeded globally before).
    forward(module, x): [B, S, ...], or what holds it, for x [B, S, width] (embeddings) or ids x [B, S] (tokens); for
        embeddings it is as wide as they are, unless not `is_width_kept`.
    branches(module, x): the same call's inner tensors by name, each [B, S, ...]; only for looking at.
    attend(q, k, v, slots): selected attention alone, q [B, T, H, Dk] being the last T of the S tokens of
        k [B, S, G, Dk] and v [B, S, G, Dv]; slots [B, T, G, n] are blocks of `geometry`, -1 for none; [B, T, H, Dv].
    select(importance, first_query): choice for importance [B, T, G, J] of queries first_query, first_query + 1 …:
        slots [B, T, G, n], or token ranges [B, T, G, n, 2] of (start, end), those nobody needs (0, 0) or (-1, -1);
        one per head where dimension 2 is H. J covers the last query's block at least.
    choose(module, x): (choice as above, importance [B, S, G, J]) as made in forward, of all S queries. Only where
        `is_choice_canonical` do slots ascend, -1 last, and ties go to the lower index.
    anatomy(module, x): one call's inner tensors, still connected to each other and to x by autograd: what the branches
        attend with, q [B, S, H, Dk], k_cmp [B, C, G, Dk], v_cmp, k_sel [B, S, G, Dk], v_sel, k_win, v_win, gates
        [B, S, G, 3]; what they give, compressed, selected and sliding [B, S, H, Dv]; their mix `gated`; slots.
    gate(module, x): branch weights [B, S, G, branches] as used in forward, differentiable.
    prefill(module, x): (output, cache) of a prompt; step(module, x, cache): (output, cache) of the next tokens, one or
        more; no gradients, and the cache given may be written to.
    fill_unwritten(cache, value): overwrite memory of a cache that holds no token; cache_bytes(cache): memory it holds.
    reorder(module, cache, rows): the cache of chosen rows [N] int64 of its batch, as beam search asks for; crop(module,
        cache, num_kept, num_removed): the cache without its last tokens, as a draft that is refused asks for. The cache
        given may be written to. fork(module, cache): a copy of it, so that either goes on without the other.
    reset(module, cache): the cache as new, so that a prompt begins afresh with a step; reset_rows(module, cache, rows):
        those of its rows as new where `rows` [B] is True, so that they begin afresh while the others go on.
    cache_reads(module, x): per step t and branch, the keys read in decoding the S tokens of x one by one:
        {branch: [B, G, S]}.
    packed(module, x, cu_seqlens): x [1, S, ...] holding sequences that start at cu_seqlens [N + 1] int32.
    documents(module, x, ids): the same for rows x [B, S, ...], where neighbours in a row that have one number in
        ids [B, S] int64 are of one sequence.
    padded(module, x, keep): the output for x, of which tokens where keep [B, S] is False are padding.
    loss(module, ids): the scalar a training step differentiates.
    train_step(module, optimizer, x): one step of the training loop, the optimizer's own step included; its loss.
    loop(module): a `TrainingLoop` around the module; without a `train_step` its steps are taken for that.
    variants(seed): modules by the name of the option they differ in from build(seed), same weights, other results.
    routes(flags): what serves each branch under environment flags {name: value}: {name of a route: bool}.
    oracle(module, x): the output by an independent, slow and trusted way, in the module's dtype, differentiable.
    twins(device, dtype): how to build it, as `build` does, by the name of each other implementation that can serve
        there: same weights as build(seed), same results expected.
    generate(module, ids, num_tokens): [B, T + num_tokens], each row of ids [B, T] and its greedy continuation (argmax).
    draw(module, ids, temperature, seed): [B, T + 1], each row of ids and one token of softmax(logits / temperature).
    spans(): the functions between slots, token ranges, masks and counts, named as in `nsa.ops.geometry`.
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
    longest: int = 0
    lengths: tuple[int, ...] = ()
    filler_ids: tuple[int, ...] = ()
    seed: int = 0
    device: str = "cpu"
    profile: Profile = "quick"
    timeout: float | None = None
    modes: tuple[Mode, ...] = MODES
    spec: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_choice_canonical: bool = False
    memory_exponent: float | None = None
    time_exponent: float | None = None
    max_slowdown: float | None = None
    environment: Environment | None = None
    call_seconds: tuple[tuple[int, float], ...] = ()
    seen: tuple[Measurement, ...] = ()
    whole_multiples_of: int = 1
    answer: tuple[str, AnswerSize] | None = None
    is_width_kept: bool = True
    output_width: int | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict)
    branches: Callable[[nn.Module, Tensor], Mapping[str, Tensor]] | None = None
    attend: Callable[..., Tensor] | None = None
    select: Callable[..., Tensor] | None = None
    choose: Callable[[nn.Module, Tensor], tuple[Tensor, Tensor]] | None = None
    gate: Callable[[nn.Module, Tensor], Tensor] | None = None
    prefill: Callable[[nn.Module, Tensor], tuple[Tensor, Any]] | None = None
    step: Callable[[nn.Module, Tensor, Any], tuple[Tensor, Any]] | None = None
    fill_unwritten: Callable[[Any, float], None] | None = None
    cache_bytes: Callable[[Any], int] | None = None
    cache_reads: Callable[[nn.Module, Tensor], Mapping[str, Tensor]] | None = None
    reorder: Callable[[nn.Module, Any, Tensor], Any] | None = None
    crop: Callable[[nn.Module, Any, int, int], Any] | None = None
    fork: Callable[[nn.Module, Any], Any] | None = None
    reset: Callable[[nn.Module, Any], Any] | None = None
    reset_rows: Callable[[nn.Module, Any, Tensor], Any] | None = None
    packed: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None
    documents: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None
    padded: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None
    loss: Callable[[nn.Module, Tensor], Tensor] | None = None
    train_step: Callable[[nn.Module, torch.optim.Optimizer, Tensor], Tensor] | None = None
    loop: Callable[[nn.Module], TrainingLoop] | None = None
    variants: Callable[[int], Mapping[str, nn.Module]] | None = None
    routes: Callable[[Mapping[str, str]], Mapping[str, bool]] | None = None
    oracle: Callable[[nn.Module, Tensor], Tensor] | None = None
    anatomy: Callable[[nn.Module, Tensor], Mapping[str, Tensor]] | None = None
    twins: Callable[[str, str], Mapping[str, Callable[[int], nn.Module]]] | None = None
    generate: Callable[[nn.Module, Tensor, int], Tensor] | None = None
    draw: Callable[[nn.Module, Tensor, float, int], Tensor] | None = None
    spans: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        if self.input not in ("embeddings", "tokens"):
            raise ValueError(f"input must be 'embeddings' or 'tokens', got {self.input!r}")
        declarations("spec", self.spec)
        if self.width < 1:
            raise ValueError(f"width must be at least 1 (dim of embeddings, or vocabulary of tokens), got {self.width}")
        if self.loop is not None and self.train_step is None:
            object.__setattr__(self, "train_step", StepOfLoop(self.loop))

    @property
    def is_slow(self) -> bool:
        """Whether its calls take so long that a check makes the most telling of them alone."""
        return Pace.of(self.call_seconds, self.profile) is not None

    def offers(self, seam: str) -> bool:
        """Whether the seam is there."""
        return getattr(self, seam) is not None

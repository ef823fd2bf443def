"""GRD207 loss-of-other-targets

Detects: a loss of a token model, in a step or an evaluation, that is the cross-entropy of other targets than the next
tokens, or is taken wrongly: not shifted, shifted twice or backwards, of probabilities in place of logits, over the
wrong axis, without its minus, with the last token followed by the first; or that asks, in one of the cross-entropies
that it adds up, for a token that those logits have read.
Matters: the loss falls, often far too well, and the model learns something else than to go on with a text.
Fix: at position i score `logits[:, i]` against `ids[:, i + 1]`, once: `cross_entropy(logits[:, :-1].flatten(0, 1),
ids[:, 1:].flatten())`.

Example:
    # faulty
    loss = cross_entropy(logits.flatten(0, 1), ids.flatten())
    # correct
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nsa_doctor.checks._shared.known_tokens import of_known_tokens
from nsa_doctor.checks._shared.unlearned import ordinary_input
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.losses import Taken, entropy_place, is_the_same, meanings, take_loss
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.places import callable_place
from nsa_doctor.probes.model.begun_loop import BegunLoop
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject

_LENGTH = 33
_SHORTEST, _ROWS, _SEEDS = 6, 3, 4  # of three rows a loop makes no two micro-batches


def run(subject: Subject) -> Iterator[Finding]:
    seams = _seams(subject)
    length = min(_LENGTH, subject.max_length)
    if subject.input != "tokens" or not seams or length < _SHORTEST or subject.width < _SHORTEST:
        raise NotApplicableError("it offers no loss or training step of tokens")
    for seam in seams:
        taken = _taken(subject, seam, length, subject.seed)
        words = _wrong(taken)
        for seed in range(1, _SEEDS):
            if words:  # one batch may fit by chance
                there = _wrong(_taken(subject, seam, length, subject.seed + seed))
                words = [item for item in words if item in there]
        if words and taken is not None:
            yield _finding(subject, seam, length, words[0], taken)
            return
    if subject.loss is not None:
        yield from of_known_tokens(subject, length, _ROWS)


def _seams(subject: Subject) -> list[str]:
    """Those that take a loss; a loop where it evaluates."""
    seams = [seam for seam in ("loss", "train_step") if subject.offers(seam)]
    evaluates = subject.loop is not None and BegunLoop.of(subject).loop.evaluate is not None
    return [*seams, "loop"] if evaluates else seams


def _taken(subject: Subject, seam: str, length: int, seed: int) -> Taken | None:
    sp = built(subject, mode="train")
    return take_loss(sp, seam, ordinary_input(sp, length, _ROWS, seed))


def _wrong(taken: Taken | None) -> list[str]:
    """All wrong meanings that fit the loss of one batch; none when a right one does."""
    fitting = [] if taken is None else [each.words for each in meanings(taken) if is_the_same(taken, each.value)]
    return list(dict.fromkeys(fitting)) if all(fitting) else []


def _finding(subject: Subject, seam: str, length: int, words: str, taken: Taken) -> Finding:
    right = next(each.value for each in meanings(taken) if not each.words)
    return Finding(
        message=f"{words}: the loss at S={length} is {taken.value:.6g}, as that gives in {_SEEDS} of {_SEEDS} batches; "
        f"next-token cross-entropy of the same logits is {right:.6g}",
        where=_place(subject, seam, length),
        evidence={"length": length, "seam": seam, "loss": taken.value, "next_token_loss": right, "meaning": words},
        repro=command_for(subject, "GRD207"),
    )


def _place(subject: Subject, seam: str, length: int) -> Place:
    """The line that takes the cross-entropy, or computes the loss; else where the training step is defined."""
    sp = built(subject, mode="train")
    batch, loss = ordinary_input(sp, length, _ROWS, subject.seed), subject.loss
    if (place := entropy_place(sp, seam, batch)) is not None:
        return place
    if seam == "loss" and loss is not None:
        with torch.enable_grad():
            return origin(subject, sp.module, lambda: loss(sp.module, batch))
    return callable_place(subject.train_step, sp.module)


def planted(subject: Subject) -> Subject:
    def of_what_was_read(module: nn.Module, ids: Tensor) -> Tensor:
        return cross_entropy(subject.forward(module, ids).flatten(0, 1), ids.flatten())

    return replace(subject, loss=of_what_was_read)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, profile="smoke", blocked_by=("FWD101", "FWD102"), unless=("bidirectional",)
)

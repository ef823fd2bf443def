"""FWD216 own-token-dropped

Detects: attention in which most tokens see themselves and some, always the same, do not: at edges of blocks, say;
    attention to chosen blocks, by the declared geometry, that never sees the block a token is in; and attention to all
    tokens up to some distance but for one or two in between, at the same distances for every query.
Matters: what such a token says reaches its own output by no key, and no loss curve shows it.
Fix: count the blocks, or the window, of a token with the token itself: those that have begun by t, not before t.

Example:
    # faulty
    seen = key // block < query // block + (query % block > 0)  # the first of a block misses its own
    # correct
    seen = key // block <= query // block
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import numbers
from nsa_doctor.probes.attention.score_watch import Softmax, softmaxes
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH, _INPUTS = 131, 3  # a length that no block and no width has
_MOST_HOLES = 2  # what skips more does so on purpose
_MOST = 0.6  # the last token of each block of two is half of all


def run(subject: Subject) -> Iterator[Finding | Note]:
    sp = comparable_module(subject)
    length = min(_LENGTH, subject.max_length)
    passes = [softmaxes(sp, sp.input(length, seed=subject.seed + index))[0] for index in range(_INPUTS)]
    reported: set[str] = set()
    for same in zip(*passes, strict=False):
        if not all(each.is_of_tokens(length) for each in same) or same[0].place.line_text in reported:
            continue
        dropped, block = _dropped(same), _own_block(same)
        if holes := _holes(same):
            message = (
                f"no token sees the one {numbers(holes)} before it, and every nearer and farther one, at S={length}"
            )
        elif dropped:
            message = (
                f"attention in which a token sees itself, but for {len(dropped)} of {length} at S={length}: "
                f"tokens {numbers(dropped)} give no weight to themselves, whatever the input"
            )
        elif block and block == getattr(subject.geometry, "l_sel", block):
            message = f"no token sees itself or its own block of {block} tokens at S={length}, whatever the input"
        else:
            continue
        reported.add(same[0].place.line_text)
        if block and subject.geometry is None:  # it may be meant for what came before alone
            yield Note(message=message, where=same[0].place)
            continue
        evidence = {"length": length, "tokens": len(dropped), "block": block}
        yield Finding(message=message, where=same[0].place, evidence=evidence, repro=command_for(subject, "FWD216"))


def _own_block(same: tuple[Softmax, ...]) -> int:
    """The length of blocks of which a token sees the earlier ones alone; 0 where it is not so."""
    seen = torch.stack([each.seen for each in same]).any(0)
    places = torch.arange(len(seen), device=seen.device)
    newest = torch.where(seen, places, -1).amax(1).tolist()
    block = next((end + 1 for end in newest if end > 0), 0)
    if not 1 < block <= len(newest) // 2:
        return 0
    is_so = all(end == t // block * block - 1 for t, end in enumerate(newest) if t >= block)
    return block if is_so else 0


def _holes(same: tuple[Softmax, ...]) -> list[int]:
    """The one or two distances at which no token is seen, where all are up to the farthest one."""
    seen = torch.stack([each.seen for each in same]).any(0)
    of_distance = [seen.diagonal(-distance) for distance in range(len(seen))]
    farthest = max((distance for distance, each in enumerate(of_distance) if bool(each.any())), default=0)
    holes = [distance for distance, each in enumerate(of_distance[:farthest]) if not bool(each.any())]
    is_else_whole = all(bool(of_distance[each].all()) for each in range(farthest) if each not in holes)
    return holes if 0 < len(holes) <= _MOST_HOLES < farthest // 8 and holes[0] > 0 and is_else_whole else []


def _dropped(same: tuple[Softmax, ...]) -> list[int]:
    """Tokens that never see themselves, though they see others and others see them, where most always do.

    None where it depends on the input for any of them.
    """
    seen = [each.seen for each in same]
    own = torch.stack([each.diagonal() for each in seen])
    if not bool((own == own[0]).all()) or not _MOST < float(own[0].double().mean()) < 1:
        return []
    return [int(token) for token in (~own[0] & seen[0].any(1) & seen[0].any(0)).nonzero().flatten()]


def planted(subject: Subject) -> Subject:
    def misses_the_first_of_a_block(module: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = subject.forward(module, x)
        t = torch.arange(y.shape[1], device=y.device)
        seen = (t[:, None] >= t) & ((t[:, None] > t) | (t[:, None] % 8 > 0))
        seen[0, 0] = True
        return y + (y @ y.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ y

    return replace(subject, forward=misses_the_first_of_a_block)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD206", "NAN101"))

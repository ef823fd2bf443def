"""What a subject chooses: on importance made up for the purpose, and in its own forward pass."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nsa_doctor.core.errors import NotApplicableError, NotComparableError
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.seams import offers_no
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.geometry_rules import Rules, rules_of

Span = tuple[int, int]
_MANY_BLOCKS = 4096  # 262,144 tokens in blocks of 64
_ROUNDINGS_APART = 256


@dataclass(frozen=True)
class Choice:
    """What queries first_query, first_query + 1 … of num_tokens chose: entries [B, T, N, n] or ranges [B, T, N, n, 2].

    N is groups, or heads. `importance` [B, T, G, J] is what they chose by; `place` finds the line that chose.
    """

    entries: Tensor
    importance: Tensor
    first_query: int
    num_tokens: int
    rules: Rules
    source: str
    place: Callable[[], Place]

    @property
    def is_ranges(self) -> bool:
        """Whether entries are token ranges in place of slots."""
        return self.entries.ndim == 5

    def rows(self) -> Iterator["Row"]:
        """Every query's choice."""
        for row, queries in enumerate(self.entries.tolist()):
            for index, groups in enumerate(queries):
                for group, entries in enumerate(groups):
                    yield Row(self, row, self.first_query + index, group, entries)


@dataclass(frozen=True)
class Row:
    """One query's choice: `t` is its position, `group` the group (or head) that chose, `entries` as they came."""

    choice: Choice
    row: int
    t: int
    group: int
    entries: list

    @property
    def scores(self) -> list[float]:
        """Importance of each block, of the group; empty where heads choose and importance is not theirs."""
        of_row = self.choice.importance[self.row, self.t - self.choice.first_query]
        per_group = max(1, self.choice.entries.shape[2] // of_row.shape[0])
        return [float(value) for value in of_row[self.group // per_group]]

    @property
    def wanted(self) -> list:
        """The entries that are not padding: −1, or the ranges (0, 0) and (−1, −1)."""
        if self.choice.is_ranges:
            return [(start, end) for start, end in self.entries if (start, end) not in ((0, 0), (-1, -1))]
        return [slot for slot in self.entries if slot != -1]

    @property
    def spans(self) -> list[Span]:
        """Token ranges of the entries that are ones, in their order."""
        length = self.choice.rules.l_sel
        if self.choice.is_ranges:
            return [(start, end) for start, end in self.wanted if start < end]
        return [(slot * length, slot * length + length) for slot in self.wanted]

    @property
    def blocks(self) -> list[int]:
        """Blocks of which a token is chosen, each once, ascending."""
        length = self.choice.rules.l_sel
        touched = (range(start // length, -(-end // length)) for start, end in self.spans if end - start < 1 << 20)
        return sorted({block for blocks in touched for block in blocks})

    def covers(self, block: int) -> bool:
        """Whether every token of the block up to t is chosen."""
        first = block * self.choice.rules.l_sel
        end = min(first + self.choice.rules.l_sel, self.t + 1)
        position = first
        for start, stop in sorted(self.spans):
            position = stop if start <= position < stop else position
        return position >= end

    def __str__(self) -> str:
        which = "group" if self.choice.entries.shape[2] == self.choice.importance.shape[2] else "head"
        what = "ranges" if self.choice.is_ranges else "slots"
        text = str(self.entries)
        text = text if len(text) <= 120 else f"{text[:117]}..."
        return f"token {self.t} of {self.choice.num_tokens}, row {self.row}, {which} {self.group}: {what} {text}"


def choices(subject: Subject) -> list[Choice]:
    """Choices by `select` from made-up importance, then by `choose` in the subject's own forward pass."""
    rules = rules_of(subject)
    found = [made for importance, first in _scores(rules, subject) for made in [selected(subject, importance, first)]]
    if subject.choose is not None and (subject.profile != "smoke" or subject.select is None):
        lengths = rules.telling_lengths(subject.max_length)[-8 if subject.profile == "full" else -2 :]
        sp = built(subject)
        found += [chosen(sp, sp.input(length, 2 if subject.profile == "full" else 1)) for length in lengths]
    made = [choice for choice in found if choice is not None]
    if not made:
        raise NotApplicableError(offers_no(("select", "choose")))
    return made


def selected(subject: Subject, importance: Tensor, first_query: int) -> Choice | None:
    """The choice by importance [B, T, G, J] of queries from first_query on; None when `select` is not offered."""
    select = subject.select
    if select is None:
        return None
    module = subject.build(subject.seed)
    call = lambda: select(importance.clone(), first_query)  # noqa: E731
    entries = _checked(ask("select", call, module))
    return Choice(
        entries=entries,
        importance=importance,
        first_query=first_query,
        num_tokens=first_query + importance.shape[1],
        rules=rules_of(subject),
        source="select",
        place=lambda: origin(subject, module, call),
    )


def chosen(sp: BuiltModule, x: Tensor) -> Choice:
    """The choice made in the forward pass for x."""
    choose = sp.subject.choose
    assert choose is not None

    def call() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return choose(sp.module, x.clone())

    entries, importance = ask("choose", call, sp.module)
    return Choice(
        entries=_checked(entries),
        importance=importance.detach().cpu(),
        first_query=0,
        num_tokens=x.shape[1],
        rules=rules_of(sp.subject),
        source="choose",
        place=lambda: origin(sp.subject, sp.module, call),
    )


def made_up(rules: Rules, num_queries: int, first_query: int, seed: int, *, rows: int = 1, groups: int = 2) -> Tensor:
    """Importance [B, T, G, J] in which all blocks of a query differ by more than any rounding."""
    num_blocks = rules.num_blocks(first_query + num_queries)
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(rows, num_queries, groups, num_blocks, generator=generator).argsort(-1)
    return (order + 1).float() / (num_blocks + 1)


def made_close(rules: Rules, num_queries: int, first_query: int, seed: int) -> Tensor:
    """Importance [B, T, G, J] in float32 in which blocks of a query differ by some hundred roundings and no more."""
    order = made_up(rules, num_queries, first_query, seed).argsort(-1)
    return 0.5 + order * (_ROUNDINGS_APART * torch.finfo(torch.float32).eps)


def _scores(rules: Rules, subject: Subject) -> Iterator[tuple[Tensor, int]]:
    """From the first token on, across the point where not every block fits, and far beyond; among thousands of blocks.

    Of those, some differ by little, and in bfloat16 many tie.
    """
    few = min(3 * rules.l_sel + 1, 200)
    edge = rules.n_sel * rules.l_sel
    yield made_up(rules, few, 0, subject.seed), 0
    yield made_up(rules, rules.l_sel + 3, edge - 1, subject.seed + 1, rows=2), edge - 1
    far = 2 * edge + rules.l_sel // 2
    yield made_up(rules, 2, far, subject.seed + 2), far
    if subject.profile != "smoke":
        last = _MANY_BLOCKS * rules.l_sel - 2
        yield made_close(rules, 2, last, subject.seed + 3), last
        yield made_up(rules, 2, last, subject.seed + 4).bfloat16(), last


def _checked(entries: Tensor) -> Tensor:
    if entries.ndim not in (4, 5) or entries.is_floating_point() or (entries.ndim == 5 and entries.shape[-1] != 2):
        raise NotComparableError(
            f"a choice must be whole numbers [B, T, G, n] or [B, T, G, n, 2], got {entries.dtype} {list(entries.shape)}"
        )
    return entries.detach().cpu().long()

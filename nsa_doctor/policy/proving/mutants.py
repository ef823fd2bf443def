"""Every mutant of some files, in an order that a seed draws."""

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from nsa_doctor.policy.proving.computing import computing
from nsa_doctor.policy.proving.source import Edit, Source
from nsa_doctor.policy.proving.tensor_operators import OPERATORS


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One file with one small change: the whole text, and the changed line before and after."""

    file: str
    line: int
    kind: str
    before: str
    after: str
    text: str


def edits(source: Source, reached: Collection[int]) -> list[Edit]:
    """Every change that an operator proposes on the lines that were reached, each once."""
    found = (edit for node in computing(source.tree, reached) for make in OPERATORS for edit in make(node, source))
    return sorted(dict.fromkeys(found), key=lambda edit: (edit.start, edit.end, edit.new))


def drawn(sources: Mapping[str, Source], reached: Mapping[str, Collection[int]], seed: int) -> Iterator[Mutant]:
    """All mutants of these files in a random order, kinds of changes by turns so that no frequent kind fills it."""
    choose = random.Random(seed)  # noqa: S311 (a sample)
    by_kind: dict[str, list[tuple[str, Edit]]] = {}
    for file in sorted(sources):
        for edit in edits(sources[file], reached[file]):
            by_kind.setdefault(edit.kind, []).append((file, edit))
    for places in by_kind.values():
        choose.shuffle(places)
    while by_kind:
        for kind in choose.sample(sorted(by_kind), len(by_kind)):
            file, edit = by_kind[kind].pop()
            if not by_kind[kind]:
                del by_kind[kind]
            if (mutant := mutated(file, sources[file], edit)) is not None:
                yield mutant


def mutated(file: str, source: Source, edit: Edit) -> Mutant | None:
    """The mutant that an edit makes; None where it is no other program."""
    text = source.edited(edit)
    if text is None:
        return None
    before, after = source.lines_of(edit)
    return Mutant(file=file, line=source.line_of(edit), kind=edit.kind, before=before, after=after, text=text)

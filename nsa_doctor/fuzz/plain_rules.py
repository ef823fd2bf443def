"""NSA's rules about who may see whom (arXiv 2502.11089, section 3.3), in plain sets.

Written to be compared with `nsa.ops.geometry` and never to call it: two authors seldom make the same mistake.
"""

from collections.abc import Iterable, Sequence

from nsa_doctor.core.facts import Violation

LARGEST_SIZE = 1 << 12
_SMALLEST_CHOICE = 3


def is_geometry(l: int, d: int, l_sel: int, n_sel: int, w: int) -> bool:  # noqa: E741 (the paper's letter)
    """Whether the equations define it."""
    return min(l, d, l_sel, w) >= 1 and n_sel >= _SMALLEST_CHOICE and l % d == 0 and l_sel % d == 0 and l <= l_sel


def compressed_blocks(num_tokens: int, l: int, d: int) -> list[set[int]]:  # noqa: E741
    """Tokens of every complete compressed block."""
    blocks, start = [], 0
    while start + l <= num_tokens:
        blocks.append(set(range(start, start + l)))
        start += d
    return blocks


def visible_compressed(query: int, l: int, d: int) -> set[int]:  # noqa: E741
    """Compressed blocks whose last token is not after the query."""
    return {index for index, block in enumerate(compressed_blocks(query + 1, l, d)) if max(block) <= query}


def selection_blocks(num_tokens: int, l_sel: int) -> list[set[int]]:
    """Tokens of every selection block, a partial last one included."""
    blocks: list[set[int]] = []
    for token in range(num_tokens):
        if token % l_sel == 0:
            blocks.append(set())
        blocks[-1].add(token)
    return blocks


def window(query: int, w: int) -> set[int]:
    """The newest w tokens, the query's own included."""
    return {token for token in range(query + 1) if query - token < w}


def candidates(query: int, l_sel: int) -> list[int]:
    """Selection blocks that start at or before the query."""
    return [block for block in range(query + 1) if block * l_sel <= query]


def forced(query: int, l_sel: int) -> set[int]:
    """Block 0 and the two most recent."""
    known = candidates(query, l_sel)
    return {known[0], *known[-2:]}


def chosen(scores: Sequence[float], query: int, l_sel: int, n_sel: int) -> list[int]:
    """The choice: forced blocks, then the best scores, the lower index at ties; ascending."""
    picked = forced(query, l_sel)
    left = [block for block in candidates(query, l_sel) if block not in picked]
    while left and len(picked) < n_sel:
        best = left[0]
        for block in left[1:]:
            if scores[block] > scores[best]:
                best = block
        picked.add(best)
        left.remove(best)
    return sorted(picked)


def is_ordered(scores: Sequence[float], query: int, l_sel: int) -> bool:
    """Whether the candidates' scores are what probabilities sum to: no NaN, none below zero."""
    return all(scores[block] >= 0 for block in candidates(query, l_sel))


def choice_complaint(slots: Sequence[int], query: int, l_sel: int, n_sel: int) -> tuple[Violation, str] | None:
    """What is wrong with a choice whatever the scores, as (violation, how): nothing for a healthy one."""
    held = [slot for slot in slots if slot != -1]
    known = candidates(query, l_sel)
    if any(slot < -1 for slot in held):
        return Violation.OUT_OF_BOUNDS, f"slot {min(held)} is no block"
    if future := [slot for slot in held if slot > known[-1]]:
        return Violation.FUTURE_BLOCK, f"block {future[0]} starts after the query"
    if len(set(held)) < len(held):
        return Violation.DUPLICATE, f"block {next(slot for slot in held if held.count(slot) > 1)} is chosen twice"
    if missing := sorted(forced(query, l_sel) - set(held)):
        return Violation.FORCED_BLOCK_MISSING, f"block {missing[0]} is not chosen"
    if len(held) > n_sel:
        return Violation.TOO_MANY, f"{len(held)} blocks are chosen of at most {n_sel}"
    if len(held) < min(n_sel, len(known)):
        return Violation.TOO_FEW, f"{len(held)} blocks are chosen of {len(known)} candidates, n_sel={n_sel}"
    if list(slots) != [*sorted(held), *[-1] * (len(slots) - len(held))]:
        return Violation.UNSORTED, "the slots do not ascend, the empty ones last"
    return None


def tokens_of_slots(slots: Iterable[int], num_tokens: int, l_sel: int) -> set[int] | None:
    """Tokens of the blocks, or None when one of them is no block."""
    blocks = selection_blocks(num_tokens, l_sel)
    found: set[int] = set()
    for slot in slots:
        if not -1 <= slot < len(blocks):
            return None
        found |= blocks[slot] if slot != -1 else set()
    return found


def tokens_of_ranges(ranges: Iterable[Sequence[int]], num_tokens: int) -> set[int] | None:
    """Tokens inside the ranges, or None when one is out of bounds or reversed."""
    found: set[int] = set()
    for start, end in ranges:
        if not 0 <= start <= end <= num_tokens:
            return None
        found |= set(range(start, end))
    return found


def runs(tokens: set[int]) -> list[list[int]]:
    """Maximal runs [start, end), ascending."""
    found: list[list[int]] = []
    for token in sorted(tokens):
        if found and found[-1][1] == token:
            found[-1][1] = token + 1
        else:
            found.append([token, token + 1])
    return found


def blocks_of(tokens: set[int], num_tokens: int, l_sel: int) -> list[int] | None:
    """The blocks the tokens are made of, or None when one is covered in part."""
    found = []
    for index, block in enumerate(selection_blocks(num_tokens, l_sel)):
        if block <= tokens:
            found.append(index)
        elif block & tokens:
            return None
    return found


def change_lengths(max_length: int, l: int, d: int, l_sel: int, n_sel: int, w: int) -> list[int]:  # noqa: E741
    """Lengths at which a block completes, fills or opens, the window fills or slides, or choosing begins."""
    found = set()
    for length in range(1, max_length + 1):
        completes = len(compressed_blocks(length, l, d)) > len(compressed_blocks(length - 1, l, d))
        opens = len(selection_blocks(length, l_sel)) > len(selection_blocks(length - 1, l_sel))
        fills = len(selection_blocks(length + 1, l_sel)) > len(selection_blocks(length, l_sel))
        slides = length in (w, w + 1)
        chooses = length in (n_sel * l_sel, n_sel * l_sel + 1)
        if completes or opens or fills or slides or chooses:
            found.add(length)
    return sorted(found)

"""What each branch may read, by the words of arXiv 2502.11089 alone: plain loops over five numbers.

Nothing here is shared with any implementation, so that a mistake of theirs cannot hide in what is expected of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsa_doctor.core.errors import NotApplicableError

if TYPE_CHECKING:
    from nsa_doctor.subject.contract import Subject


@dataclass(frozen=True, kw_only=True)
class Rules:
    """l, d: length and stride of compressed blocks; l_sel: length of selection blocks; w: the window; all in tokens.

    n_sel: how many blocks a query chooses. A query is named by its position t.
    """

    l: int  # noqa: E741 (the paper's letter)
    d: int
    l_sel: int
    n_sel: int
    w: int

    def num_compressed(self, num_tokens: int) -> int:
        """Compressed blocks that lie wholly within so many tokens."""
        return len(self.visible(num_tokens - 1))

    def visible(self, t: int) -> list[int]:
        """Compressed blocks whose last token is no later than t."""
        blocks: list[int] = []
        while len(blocks) * self.d + self.l - 1 <= t:
            blocks.append(len(blocks))
        return blocks

    def compressed_tokens(self, block: int) -> range:
        """Tokens a compressed block summarises."""
        return range(block * self.d, block * self.d + self.l)

    def num_blocks(self, num_tokens: int) -> int:
        """Selection blocks that hold a token, the last one perhaps not full."""
        return sum(1 for _ in range(0, num_tokens, self.l_sel))

    def block_tokens(self, block: int) -> range:
        """Tokens of a selection block."""
        return range(block * self.l_sel, (block + 1) * self.l_sel)

    def candidates(self, t: int) -> list[int]:
        """Selection blocks that have begun by t."""
        return list(range(self.num_blocks(t + 1)))

    def forced(self, t: int) -> list[int]:
        """Block 0 and the two most recent ones, each once."""
        return sorted({0, *self.candidates(t)[-2:]})

    def window(self, t: int) -> range:
        """The newest w tokens, t included."""
        return range(max(0, t + 1 - self.w), t + 1)

    def shared_strides(self, compressed: int, block: int) -> int:
        """How many strides of d tokens a compressed block and a selection block have in common."""
        tokens = set(self.block_tokens(block))
        return sum(start in tokens for start in self.compressed_tokens(compressed) if start % self.d == 0)

    def best(self, scores: Sequence[float], t: int) -> list[int]:
        """The choice: forced blocks, then the highest scores, the lower index at ties."""
        forced = self.forced(t)
        others = sorted((block for block in self.candidates(t) if block not in forced), key=lambda j: -scores[j])
        return sorted([*forced, *others[: max(0, self.n_sel - len(forced))]])

    def readable(self, blocks: Iterable[int], t: int) -> list[int]:
        """Tokens of those blocks, up to t."""
        return [token for block in sorted(set(blocks)) for token in self.block_tokens(block) if token <= t]

    def telling_lengths(self, limit: int) -> list[int]:
        """Lengths at which something is to be seen, up to a limit: a partial block at the end, a choice to make."""
        beyond = self.n_sel * self.l_sel
        wanted = {self.l, self.l_sel + 1, 2 * self.l_sel + self.d + 1, beyond + self.l_sel // 2 + 1, self.w + self.d}
        fitting = {length for length in wanted if length <= limit} or {limit}
        return sorted(fitting)


def rules_of(subject: "Subject") -> Rules:
    """The rules for a subject's geometry; NotComparableError where it is not one of native sparse attention."""
    names = ("l", "d", "l_sel", "n_sel", "w")
    values = {name: getattr(subject.geometry, name, None) for name in names}
    if not all(isinstance(value, int) and value > 0 for value in values.values()):
        raise NotApplicableError(f"it declares no geometry of native sparse attention ({', '.join(names)})")
    return Rules(**values)  # type: ignore[arg-type]

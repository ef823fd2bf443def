"""How many keys each query read, counted from the masks the operators apply."""

from dataclasses import dataclass

from torch import Tensor


@dataclass
class ReadCounter:
    """Filled by the operators it is handed to: int64 [B, T, G] per branch, None until that branch has run."""

    compressed: Tensor | None = None
    selected: Tensor | None = None
    sliding: Tensor | None = None

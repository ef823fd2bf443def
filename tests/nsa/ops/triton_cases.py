"""The Triton kernels against the oracle, on a GPU, or interpreted in plain Python on a CPU.

TRITON_INTERPRET=1 python -m tests.nsa.ops.triton_cases     float32 on a CPU: no GPU, the kernels' logic alone
"""

import os
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor

from nsa.ops.compress import reference as compress_reference
from nsa.ops.geometry import EMPTY_SLOT, Geometry
from nsa.ops.select import reference as select_reference


@dataclass(frozen=True)
class Sizes:
    """Two rows of the last `num_queries` of `num_tokens`."""

    num_queries: int
    num_tokens: int
    groups: int
    heads: int  # of a group
    head_sizes: tuple[int, int]
    geometry: Geometry
    budget: int = 1 << 26  # probabilities at once

    def leaves(self, num_keys: int, dtype: torch.dtype, device: str) -> list[Tensor]:
        """Random q, k and v that require gradients."""
        torch.manual_seed(0)
        size_k, size_v = self.head_sizes
        shapes = (
            (2, self.num_queries, self.groups * self.heads, size_k),
            (2, num_keys, self.groups, size_k),
            (2, num_keys, self.groups, size_v),
        )
        # Heads first in memory, as nobody promises that they are not.
        made = (torch.randn(shape).transpose(1, 2).contiguous().transpose(1, 2) for shape in shapes)
        return [x.to(device, dtype).requires_grad_() for x in made]


def _blocks(l_sel: int, n_sel: int) -> Geometry:
    return Geometry(l=16, d=16, l_sel=l_sel, n_sel=n_sel, w=1)


def _stairs(length: int, stride: int) -> Geometry:
    return Geometry(l=length, d=stride, l_sel=64, n_sel=3, w=1)


SELECTED = {
    "one-token": Sizes(1, 1, 1, 1, (16, 16), _blocks(16, 3)),
    "six-heads": Sizes(40, 40, 2, 6, (64, 64), _blocks(16, 3)),
    "the-last-queries": Sizes(5, 83, 2, 3, (16, 32), _blocks(32, 3)),
    "odd-head-sizes": Sizes(20, 40, 1, 2, (24, 40), _blocks(16, 3)),
    "a-block-in-several-tiles": Sizes(21, 201, 1, 2, (16, 16), _blocks(96, 3)),
    "a-block-longer-than-the-sequence": Sizes(19, 37, 1, 2, (16, 16), _blocks(1 << 20, 3)),
    "more-heads-than-a-program-takes": Sizes(6, 40, 1, 70, (16, 16), _blocks(16, 3)),
    "many-slots": Sizes(9, 150, 1, 1, (16, 16), _blocks(16, 17)),
}
COMPRESSED = {
    "no-block": Sizes(15, 15, 1, 2, (16, 16), _stairs(16, 16)),
    "one-block": Sizes(16, 16, 2, 1, (16, 16), _stairs(16, 8)),
    "six-heads": Sizes(150, 150, 2, 6, (64, 64), _stairs(16, 8)),
    "the-last-queries": Sizes(5, 187, 2, 3, (16, 32), _stairs(32, 16)),
    "odd-head-sizes": Sizes(70, 70, 1, 2, (24, 40), _stairs(16, 4)),
    "many-keys": Sizes(40, 340, 1, 2, (16, 16), _stairs(4, 4)),
    "probabilities-in-parts": Sizes(50, 90, 2, 2, (16, 16), _stairs(16, 8), budget=40),
    "more-heads-than-a-tile-has-rows": Sizes(20, 40, 1, 140, (16, 16), _stairs(16, 16)),
}


def drawn_slots(sizes: Sizes, device: str) -> Tensor:
    """Slots in any order, empty ones among them, blocks of the future too; the second query has none at all."""
    num_blocks, num = sizes.geometry.num_blocks(sizes.num_tokens), sizes.geometry.n_sel
    order = torch.rand(2, sizes.num_queries, sizes.groups, num_blocks).argsort(-1)[..., :num]
    slots = torch.full((2, sizes.num_queries, sizes.groups, num), EMPTY_SLOT)
    slots[..., : order.shape[-1]] = order
    slots[torch.rand(slots.shape) < 0.2] = EMPTY_SLOT
    slots[:, 1:2] = EMPTY_SLOT
    return slots.to(device, torch.int32 if sizes.groups == 2 else torch.int64)


def errors_of_selected(sizes: Sizes, dtype: torch.dtype, device: str) -> dict[str, float]:
    """Relative error of the output and of each gradient against the oracle in float64."""
    from nsa.ops.select import triton

    leaves = sizes.leaves(sizes.num_tokens, dtype, device)
    exact = [x.detach().double().cpu().requires_grad_() for x in leaves]
    slots = drawn_slots(sizes, device)
    truth = select_reference.selected_attention(*exact, slots.cpu(), sizes.geometry)
    out = triton.selected_attention(*leaves, slots, sizes.geometry)
    assert out[:, 1:2].count_nonzero() == 0
    return _errors(out, truth, leaves, exact)


def errors_of_compressed(sizes: Sizes, dtype: torch.dtype, device: str) -> dict[str, float]:
    """The same of the compressed branch, and the error of the probabilities that blocks are chosen by."""
    from nsa.ops.compress import triton

    geometry, first_query = sizes.geometry, sizes.num_tokens - sizes.num_queries
    num_keys = geometry.num_compressed(sizes.num_tokens)
    leaves = sizes.leaves(num_keys, dtype, device)
    exact = [x.detach().double().cpu().requires_grad_() for x in leaves]
    truth, probabilities = compress_reference.compressed_attention(*exact, geometry, first_query)
    seen = torch.zeros(2, sizes.num_queries, sizes.groups, num_keys)

    def visit(rows: slice, queries: slice, found: Tensor) -> None:
        seen[rows, queries, :, : found.shape[-1]] = found.cpu()

    with patch.object(triton, "tile_budget", lambda device: sizes.budget):
        out = triton.compressed_attention(*leaves, geometry, first_query, visit)
    wanted = probabilities.detach().unflatten(2, (sizes.groups, sizes.heads)).sum(3)
    return {"probabilities": _error(seen, wanted)} | _errors(out, truth, leaves, exact)


def _errors(out: Tensor, truth: Tensor, leaves: list[Tensor], exact: list[Tensor]) -> dict[str, float]:
    weight = torch.randn(out.shape, dtype=torch.float64)
    wanted = torch.autograd.grad((truth * weight).sum(), exact, allow_unused=True, materialize_grads=True)
    got = torch.autograd.grad((out * weight.to(out)).sum(), leaves)
    return {
        name: _error(a, b) for name, a, b in zip(("out", "q", "k", "v"), (out, *got), (truth, *wanted), strict=True)
    }


def _error(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ / ‖wanted‖, and NaN for what is not finite; of nothing at all, whether it is nothing."""
    found, wanted = found.detach().cpu().double(), wanted.detach()
    norm = wanted.norm()
    return float((found - wanted).norm() / norm) if norm else float(found.norm())


def main() -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("set TRITON_INTERPRET=1 to interpret the kernels")
    for branch, cases, errors in (
        ("selected", SELECTED, errors_of_selected),
        ("compressed", COMPRESSED, errors_of_compressed),
    ):
        for name, sizes in cases.items():
            found = errors(sizes, torch.float32, "cpu")
            print(branch, name, " ".join(f"{part}={error:.1e}" for part, error in found.items()), flush=True)
            if not all(error <= 1e-5 for error in found.values()):
                raise SystemExit(f"the kernels are wrong: {branch} {name}")


if __name__ == "__main__":
    main()

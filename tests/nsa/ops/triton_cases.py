"""The Triton kernels against the oracle, on a GPU, or interpreted in plain Python on a CPU.

TRITON_INTERPRET=1 python -m tests.nsa.ops.triton_cases     float32 on a CPU: no GPU, the kernels' logic alone
"""

import os
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from nsa.ops.compress import reference as compress_reference
from nsa.ops.gate import reference as gate_reference
from nsa.ops.geometry import EMPTY_SLOT, Geometry
from nsa.ops.score import reference as score_reference
from nsa.ops.select import reference as select_reference
from nsa.ops.select import vectorized as select_vectorized
from nsa.ops.slide import reference as slide_reference
from nsa.ops.tiles import LOG2_E

QKV = ("out", "q", "k", "v")


@dataclass(frozen=True)
class Sizes:
    """Two rows of the last `num_queries` of `num_tokens`."""

    num_queries: int
    num_tokens: int
    groups: int
    heads: int  # of a group
    head_sizes: tuple[int, int]
    geometry: Geometry
    budget: int = 1 << 26  # numbers that blocks are chosen by, or give to queries, at once

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


def _window(w: int) -> Geometry:
    return Geometry(l=16, d=16, l_sel=64, n_sel=3, w=w)


def _choice(length: int, stride: int, l_sel: int, n_sel: int) -> Geometry:
    return Geometry(l=length, d=stride, l_sel=l_sel, n_sel=n_sel, w=1)


SELECTED = {
    "one-token": Sizes(1, 1, 1, 1, (16, 16), _blocks(16, 3)),
    "six-heads": Sizes(40, 40, 2, 6, (64, 64), _blocks(16, 3)),
    "the-last-queries": Sizes(5, 83, 2, 3, (16, 32), _blocks(32, 3)),
    "odd-head-sizes": Sizes(20, 40, 1, 2, (24, 40), _blocks(16, 3)),
    "a-block-in-several-tiles": Sizes(21, 201, 1, 2, (16, 16), _blocks(96, 3)),
    "a-block-longer-than-the-sequence": Sizes(19, 37, 1, 2, (16, 16), _blocks(1 << 20, 3)),
    "more-heads-than-a-program-takes": Sizes(6, 40, 1, 70, (16, 16), _blocks(16, 3)),
    "many-slots": Sizes(9, 150, 1, 1, (16, 16), _blocks(16, 17)),
    "sixteen-heads": Sizes(30, 60, 2, 16, (16, 32), _blocks(16, 3)),
    "a-row-at-a-time": Sizes(40, 83, 2, 3, (16, 32), _blocks(16, 3), budget=40 * 576),
    "a-few-queries-at-a-time": Sizes(40, 83, 2, 3, (16, 32), _blocks(16, 3), budget=13 * 576),
}
ALL_FIRST = {
    "every-block": Sizes(40, 40, 2, 6, (64, 64), _blocks(16, 3)),
    "one-token": Sizes(1, 1, 1, 1, (16, 16), _blocks(16, 3)),
    "one-block-more": Sizes(65, 65, 2, 3, (16, 32), _blocks(16, 4)),
    "many-blocks-more": Sizes(150, 150, 2, 6, (24, 40), _blocks(16, 3)),
    "the-last-queries": Sizes(50, 90, 2, 3, (16, 32), _blocks(16, 4)),
    "the-last-queries-of-a-short-row": Sizes(5, 40, 1, 2, (16, 16), _blocks(16, 3)),
    "none-in-the-first-blocks": Sizes(5, 90, 2, 3, (16, 32), _blocks(16, 3)),
    "more-heads-than-a-program-takes": Sizes(60, 60, 1, 70, (16, 16), _blocks(16, 3)),
    "sixteen-heads": Sizes(90, 90, 2, 16, (16, 32), _blocks(16, 4)),
    "nine-heads-of-the-last-queries": Sizes(51, 190, 1, 9, (40, 24), _blocks(32, 5)),
    "a-few-queries-at-a-time": Sizes(90, 90, 2, 6, (16, 16), _blocks(16, 3), budget=13 * 576),
}
COMPRESSED = {
    "no-block": Sizes(15, 15, 1, 2, (16, 16), _stairs(16, 16)),
    "one-block": Sizes(16, 16, 2, 1, (16, 16), _stairs(16, 8)),
    "six-heads": Sizes(150, 150, 2, 6, (64, 64), _stairs(16, 8)),
    "the-last-queries": Sizes(5, 187, 2, 3, (16, 32), _stairs(32, 16)),
    "odd-head-sizes": Sizes(70, 70, 1, 2, (24, 40), _stairs(16, 4)),
    "head-sizes-of-no-tile": Sizes(80, 80, 2, 3, (10, 18), _stairs(8, 4)),
    "many-keys": Sizes(40, 340, 1, 2, (16, 16), _stairs(4, 4)),
    "many-spans": Sizes(600, 600, 1, 1, (16, 16), _stairs(16, 8)),
    "sixteen-heads": Sizes(70, 100, 2, 16, (16, 32), _stairs(16, 8)),
    "more-heads-than-a-tile-has-rows": Sizes(20, 40, 1, 140, (16, 16), _stairs(16, 16)),
}
CHOSEN = {
    "no-more-blocks-than-slots": Sizes(64, 64, 2, 2, (16, 16), _choice(16, 8, 16, 4)),
    "one-block-more-than-slots": Sizes(65, 65, 2, 2, (16, 16), _choice(16, 8, 16, 4)),
    "forced-blocks-alone": Sizes(90, 90, 2, 1, (16, 16), _choice(8, 8, 16, 3)),
    "no-spill": Sizes(150, 150, 2, 3, (24, 24), _choice(8, 8, 16, 5)),
    "three-strides-to-a-block": Sizes(150, 150, 2, 2, (16, 16), _choice(8, 4, 12, 5)),
    "a-block-in-several-tiles": Sizes(120, 800, 1, 2, (16, 16), _choice(3, 1, 150, 4)),
    "the-last-queries": Sizes(3, 400, 2, 6, (40, 40), _choice(32, 16, 32, 6)),
    "in-parts": Sizes(150, 150, 2, 2, (16, 16), _choice(16, 8, 16, 4), budget=40),
    "more-blocks-than-a-warp-has": Sizes(2, 8300, 1, 1, (16, 16), _choice(4, 4, 4, 20)),
}

SLIDING = {
    "one-token": Sizes(1, 1, 1, 1, (16, 16), _window(5)),
    "six-heads": Sizes(150, 150, 2, 6, (64, 64), _window(33)),
    "sixteen-heads": Sizes(70, 100, 2, 16, (16, 32), _window(40)),
    "a-window-of-two": Sizes(70, 70, 1, 2, (16, 16), _window(2)),
    "a-window-beyond-the-keys": Sizes(90, 90, 2, 2, (24, 40), _window(1000)),
    "the-last-queries": Sizes(5, 187, 2, 3, (16, 32), _window(64)),
    "head-sizes-of-no-tile": Sizes(80, 80, 2, 3, (10, 18), _window(40)),
    "keys-that-no-query-sees": Sizes(40, 340, 1, 2, (16, 16), _window(64)),
    "large-heads": Sizes(70, 90, 1, 3, (96, 128), _window(40)),
    "more-heads-than-a-tile-has-rows": Sizes(20, 40, 1, 140, (16, 16), _window(8)),
}
MIXED = {
    "one-head": Sizes(3, 3, 1, 1, (16, 16), _stairs(16, 16)),
    "six-heads": Sizes(7, 7, 2, 6, (16, 40), _stairs(16, 16)),
    "sixteen-heads": Sizes(5, 5, 3, 16, (16, 64), _stairs(16, 16)),
    "seventy-heads": Sizes(2, 2, 1, 70, (16, 24), _stairs(16, 16)),
}

LOGITS = {
    "two": Sizes(4, 2, 1, 1, (16, 16), _stairs(16, 16)),
    "a-part": Sizes(7, 4096, 1, 1, (16, 16), _stairs(16, 16)),
    "several-parts": Sizes(7, 9001, 1, 1, (16, 16), _stairs(16, 16)),
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


def errors_of_chosen(sizes: Sizes, dtype: torch.dtype, device: str) -> dict[str, float]:
    """The same for a choice, of which the queries in the first blocks need no slots: what they hold is not read."""
    from nsa.ops.select import block_kernels, triton

    leaves = sizes.leaves(sizes.num_tokens, dtype, device)
    exact = [x.detach().double().cpu().requires_grad_() for x in leaves]
    first_query, num_blocks = sizes.num_tokens - sizes.num_queries, sizes.geometry.num_blocks(sizes.num_tokens)
    importance = torch.rand(2, sizes.num_queries, sizes.groups, num_blocks)
    slots = select_vectorized.choose_slots(importance, sizes.geometry, first_query)
    truth = select_reference.selected_attention(*exact, slots, sizes.geometry)
    num_dense = max(0, sizes.geometry.n_sel * sizes.geometry.l_sel - first_query)
    slots[:, :num_dense] = EMPTY_SLOT
    with patch.multiple(block_kernels, _READERS=4, _MOST_PARTIAL=sizes.budget):
        out = triton.selected_attention(*leaves, slots.to(device), sizes.geometry, is_chosen=True)
        return _errors(out, truth, leaves, exact)


def errors_of_selected(sizes: Sizes, dtype: torch.dtype, device: str) -> dict[str, float]:
    """Relative error of the output and of each gradient against the oracle in float64."""
    from nsa.ops.select import block_kernels, triton

    leaves = sizes.leaves(sizes.num_tokens, dtype, device)
    exact = [x.detach().double().cpu().requires_grad_() for x in leaves]
    slots = drawn_slots(sizes, device)
    truth = select_reference.selected_attention(*exact, slots.cpu(), sizes.geometry)
    with patch.multiple(block_kernels, _READERS=4, _MOST_PARTIAL=sizes.budget):  # so that blocks have several parts
        out = triton.selected_attention(*leaves, slots, sizes.geometry)
        assert out[:, 1:2].count_nonzero() == 0
        return _errors(out, truth, leaves, exact)


def errors_of_compressed(sizes: Sizes, dtype: torch.dtype, device: str) -> dict[str, float]:
    """The same of the compressed branch, and of its normaliser."""
    from nsa.ops.compress import triton

    geometry, first_query = sizes.geometry, sizes.num_tokens - sizes.num_queries
    leaves = sizes.leaves(geometry.num_compressed(sizes.num_tokens), dtype, device)
    exact = [x.detach().double().cpu().requires_grad_() for x in leaves]
    truth, _ = compress_reference.compressed_attention(*exact, geometry, first_query)
    with patch.object(triton, "_LEAST_TILED", 0):
        out, norm = triton.compressed_attention(*leaves, geometry, first_query)
        errors = _errors(out, truth, leaves, exact)
    return {"norm": _error(norm.sum(-1), _log_sums(exact[0], exact[1], sizes))} | errors


def _log_sums(q: Tensor, k: Tensor, sizes: Sizes) -> Tensor:
    """Log2 of the sum that makes each row's probabilities of its scores; 0 for a row that sees no key."""
    geometry, first_query = sizes.geometry, sizes.num_tokens - sizes.num_queries
    scores = torch.einsum("bthd,bchd->bthc", q, k.repeat_interleave(sizes.heads, 2)) / q.shape[-1] ** 0.5
    last = torch.arange(k.shape[1]) * geometry.d + geometry.l - 1
    is_hidden = last > torch.arange(first_query, sizes.num_tokens)[:, None, None]
    sums = scores.masked_fill(is_hidden, -torch.inf).logsumexp(-1)
    return torch.where(is_hidden.all(-1), 0, sums * LOG2_E)


def gap_of_choice(sizes: Sizes, dtype: torch.dtype, device: str) -> float:
    """How much more important, by the oracle, a block left out is than one chosen: relative, 0 where none is.

    Forced blocks are chosen, as many as may be, and slots are what plain torch makes of the kernels' own importance.
    """
    from nsa.ops.compress import triton as compress
    from nsa.ops.score import triton

    geometry, first_query = sizes.geometry, sizes.num_tokens - sizes.num_queries
    q, k, v = (x.detach() for x in sizes.leaves(geometry.num_compressed(sizes.num_tokens), dtype, device))
    _, norm = compress.compressed_attention(q, k, v, geometry, first_query)
    with patch.object(triton, "tile_budget", lambda device: sizes.budget):
        slots = triton.choose_slots(q, k, norm, geometry, first_query)
    num_blocks = geometry.num_blocks(sizes.num_tokens)
    assert torch.equal(slots, slots_of_parts(q, k, norm, sizes))
    exact = [x.double().cpu() for x in (q, k, v)]
    _, probabilities = compress_reference.compressed_attention(*exact, geometry, first_query)
    importance = score_reference.block_importance(probabilities, sizes.groups, num_blocks, geometry)
    chosen = torch.zeros(*importance.shape[:-1], num_blocks + 1, dtype=torch.bool)
    chosen = chosen.scatter(-1, slots.cpu() % (num_blocks + 1), True)[..., :-1]
    newest = torch.arange(first_query, sizes.num_tokens)[:, None, None] // geometry.l_sel
    block = torch.arange(num_blocks)
    forced = (block <= newest) & ((block == 0) | (block >= newest - 1))
    assert bool((chosen | ~forced).all())
    assert bool((chosen & (block > newest)).sum() == 0)
    assert bool((chosen.sum(-1) == (newest[..., 0] + 1).clamp(max=geometry.n_sel)).all())
    least = importance.masked_fill(~chosen | forced, torch.inf).amin(-1)
    most = importance.masked_fill(chosen | (block > newest), 0).amax(-1)
    return float((1 - least / most).clamp(min=0).max()) if bool((most > 0).any()) else 0.0


def slots_of_parts(q: Tensor, k: Tensor, norm: Tensor, sizes: Sizes) -> Tensor:
    """What plain torch chooses by the numbers that the first kernel writes."""
    from nsa.ops.score import triton

    geometry, first_query = sizes.geometry, sizes.num_tokens - sizes.num_queries
    compiled, every = triton.sizes_of(q, k, geometry), slice(0, sizes.num_queries)
    parts = triton.given_to_blocks(q.contiguous(), k.contiguous(), norm, geometry, first_query, every, compiled)
    inside, spilled = (x.unflatten(2, (-1, compiled["PIECES"])).unflatten(0, (2, -1)) for x in parts)
    importance = torch.zeros_like(inside[..., 0])
    for piece in range(compiled["PIECES"]):
        importance = importance + inside[..., piece]
    for piece in range(compiled["PIECES"] if geometry.l > geometry.d else 0):
        importance = importance + torch.nn.functional.pad(spilled[..., :-1, piece], (1, 0))
    return select_vectorized.choose_slots(importance.transpose(1, 2), geometry, first_query)


def errors_of_sliding(sizes: Sizes, dtype: torch.dtype, device: str) -> dict[str, float]:
    """Relative error of the sliding branch and of each gradient against the oracle in float64."""
    from nsa.ops.slide import triton

    leaves = sizes.leaves(sizes.num_tokens, dtype, device)
    exact = [x.detach().double().cpu().requires_grad_() for x in leaves]
    truth = slide_reference.sliding_attention(*exact, sizes.geometry)
    return _errors(triton.sliding_attention(*leaves, sizes.geometry), truth, leaves, exact)


def errors_of_mix(sizes: Sizes, dtype: torch.dtype, device: str) -> dict[str, float]:
    """Relative error of the gated mix and of each gradient against the oracle in float64."""
    from nsa.ops.gate import triton

    torch.manual_seed(0)
    shape = 2, sizes.num_queries, sizes.groups * sizes.heads, sizes.head_sizes[1]
    drawn = [torch.randn(shape) for _ in range(3)] + [torch.rand(2, sizes.num_queries, sizes.groups, 3)]
    leaves = [x.to(device, dtype).requires_grad_() for x in drawn]
    exact = [x.detach().double().cpu().requires_grad_() for x in leaves]
    names = ("out", "compressed", "selected", "sliding", "gates")
    return _errors(triton.mix(*leaves), gate_reference.mix(*exact), leaves, exact, names)


def errors_of_loss(sizes: Sizes, dtype: torch.dtype, device: str) -> dict[str, float]:
    """Relative error of the cross-entropy and of its gradient; rows of logits as long as there are tokens."""
    from nsa.train.loss_kernels import cross_entropy

    torch.manual_seed(0)
    drawn = 3 * torch.randn(sizes.num_queries, sizes.num_tokens + 3).to(dtype)
    targets = torch.randint(sizes.num_tokens, (sizes.num_queries,))
    targets[1::3] = -100
    drawn[1] = torch.inf  # which is ignored
    drawn[0, 2:] = -torch.inf
    targets[0] = 1
    leaf, exact = drawn.to(device).requires_grad_(), drawn.double().requires_grad_()
    kept = (targets != -100).nonzero()[:, 0]
    truth = functional.cross_entropy(exact[kept, :-3], targets[kept], reduction="none")
    truth = torch.zeros(sizes.num_queries, dtype=torch.float64).index_put((kept,), truth)
    losses = cross_entropy(leaf[:, :-3], targets.to(device), -100)  # rows with others between them
    assert losses.dtype == torch.float32
    found = _errors(losses, truth, [leaf], [exact], ("norm", "logits"))
    outside = cross_entropy(leaf[2:3, :-3].detach(), targets[:1].to(device) + sizes.num_tokens, -100)
    return found | {"outside": float(not outside.isnan())}


def choices_with_ties(device: str, num_blocks: int = 32) -> tuple[Tensor, Tensor]:
    """Slots of the kernel and of plain torch by importance with ties, zeros of both signs, NaN and infinity in it."""
    from nsa.ops.score import triton

    torch.manual_seed(0)
    geometry = Geometry(l=16, d=16, l_sel=16, n_sel=7, w=1)  # nothing is spilled: importance is what it is given
    ties, fractions = torch.randint(4, (3, 500, num_blocks)).float(), torch.rand(3, 500, num_blocks)
    importance = torch.where(torch.rand(ties.shape) < 0.3, fractions, ties)
    importance[:, 1::7, 3::4] = torch.nan
    importance[:, 2::7, 5] = torch.inf
    importance[:, ::7, ::3], importance[:, 3::7] = -0.0, 0.0
    importance[:, 5::7] = torch.arange(num_blocks) % 64 * 1000 + torch.rand(num_blocks)  # the best are far apart
    importance, first_query = importance.to(device), 16 * num_blocks - 500
    slots = torch.empty(1, 500, 3, 7, dtype=torch.int64, device=device)
    triton.choose_tile(importance, importance, slots, geometry, first_query, slice(0, 500), 1)
    return slots, select_vectorized.choose_slots(importance.transpose(0, 1)[None], geometry, first_query)


def is_alike_in_wide_offsets() -> bool:
    """Whether int64 offsets give the bits that int32 offsets give, forward and every gradient."""
    from nsa.ops import kernel_tiles
    from nsa.ops.select import triton

    sizes, seen = SELECTED["six-heads"], []
    slots = drawn_slots(sizes, "cpu")
    for most_offsets in (2**31 - 1, 0):
        leaves = sizes.leaves(sizes.num_tokens, torch.float32, "cpu")
        with patch.object(kernel_tiles, "_MOST_OFFSETS", most_offsets):
            out = triton.selected_attention(*leaves, slots, sizes.geometry)
            seen.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    return all(torch.equal(narrow, wide) for narrow, wide in zip(*seen, strict=True))


def is_alike_compiled() -> bool:
    """Whether a layer that the kernels serve compiles whole, once for two lengths, and gives what it gives eagerly."""
    from nsa import NSAConfig, NSAttention, backends

    torch.manual_seed(0)
    config = NSAConfig(dim=32, n_heads=4, n_kv_groups=2, d_k=8, d_v=8, l=8, d=4, l_sel=16, n_sel=4, w=24)
    reason = torch.compiler.assume_constant_result(lambda name, package, *_kind: None if package == "triton" else name)
    with patch.object(backends, "_why_no_kernel", reason):
        layer = NSAttention(config, "triton")
        compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
        for num_tokens in (40, 101):  # all blocks chosen, and not
            x, seen = torch.randn(1, num_tokens, 32), []
            for function in (layer, compiled):
                out = function(x)
                seen.append((out, *torch.autograd.grad(out.square().sum(), list(layer.parameters()))))
            if not all(_error(a, b) <= 1e-5 for a, b in zip(*seen, strict=True)):
                return False
    return torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def _errors(
    out: Tensor, truth: Tensor, leaves: list[Tensor], exact: list[Tensor], names: tuple[str, ...] = QKV
) -> dict[str, float]:
    weight = torch.randn(out.shape, dtype=torch.float64)
    wanted = torch.autograd.grad((truth * weight).sum(), exact, allow_unused=True, materialize_grads=True)
    got = torch.autograd.grad((out * weight.to(out)).sum(), leaves)
    return {name: _error(a, b) for name, a, b in zip(names, (out, *got), (truth, *wanted), strict=True)}


def _error(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ / ‖wanted‖, and NaN for what is not finite; of nothing at all, whether it is nothing."""
    found, wanted = found.detach().cpu().double(), wanted.detach()
    norm = wanted.norm()
    return float((found - wanted).norm() / norm) if norm else float(found.norm())


BRANCHES = {
    "selected": (SELECTED, errors_of_selected),
    "all first": (ALL_FIRST, errors_of_chosen),
    "compressed": (COMPRESSED, errors_of_compressed),
    "sliding": (SLIDING, errors_of_sliding),
    "mixed": (MIXED, errors_of_mix),
    "loss": (LOGITS, errors_of_loss),
    "chosen": (CHOSEN, lambda *case: {"gap": gap_of_choice(*case)}),
}


def main() -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("set TRITON_INTERPRET=1 to interpret the kernels")
    if not all(torch.equal(*choices_with_ties("cpu", num)) for num in (32, 300)):
        raise SystemExit("the kernels are wrong: ties are not chosen as plain torch chooses them")
    if not is_alike_in_wide_offsets():
        raise SystemExit("the kernels are wrong: int64 offsets give other bits than int32 offsets")
    if not is_alike_compiled():
        raise SystemExit("a layer that the kernels serve does not compile to what it gives eagerly")
    for branch, (cases, errors) in BRANCHES.items():
        for name, sizes in cases.items():
            found = errors(sizes, torch.float32, "cpu")
            print(branch, name, " ".join(f"{part}={error:.1e}" for part, error in found.items()), flush=True)
            if not all(error <= 1e-5 for error in found.values()):
                raise SystemExit(f"the kernels are wrong: {branch} {name}")


if __name__ == "__main__":
    main()

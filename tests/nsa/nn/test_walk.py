"""From a layer to the arithmetic of a branch is a short walk, and the way is chosen once for a call."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import nsa
from nsa import NSAConfig, NSAttention, backends
from nsa.nn import attention
from nsa.ops import banded, choice
from nsa.ops.compress import reference as compress_reference
from nsa.ops.compress import vectorized as compress_vectorized
from nsa.ops.gate import reference as gate_reference
from nsa.ops.gate import vectorized as gate_vectorized
from nsa.ops.select import reference as select_reference
from nsa.ops.select import vectorized as select_vectorized
from nsa.ops.slide import fused as slide_fused
from nsa.ops.slide import reference as slide_reference

MOST = 8
HOME = str(Path(nsa.__file__).parent)
CONFIG = NSAConfig(dim=24, n_heads=4, n_kv_groups=2, d_k=6, d_v=5, l=4, d=2, l_sel=8, n_sel=4, w=7)
INNERMOST: dict[str, list[tuple[Any, str]]] = {  # implementation: what does the arithmetic of its branches
    "vectorized": [
        (banded, "attend"),
        (choice.score_vectorized, "group_importance"),
        (select_vectorized, "choose_slots"),
        (select_vectorized, "attend"),
        (gate_vectorized, "mix"),
    ],
    "fused": [(banded, "attend"), (slide_fused, "scaled_dot_product_attention"), (select_vectorized, "attend")],
    "reference": [
        (compress_reference, "compression_probabilities"),
        (select_reference, "choose_slots"),
        (select_reference, "selected_attention"),
        (slide_reference, "_attend"),
        (gate_reference, "mix"),
    ],
}
WALKS = [(impl, owner, name) for impl, each in INNERMOST.items() for owner, name in each]


def frames_since(function: str, frame: FrameType | None) -> int:
    """Frames of nsa's own functions between here and the layer's `function`."""
    count = 0
    while frame is not None:
        if frame.f_code.co_name == function and frame.f_code.co_filename == attention.__file__:
            return count
        count += frame.f_code.co_filename.startswith(HOME)
        frame = frame.f_back
    raise AssertionError(f"not called from {function}")


@pytest.mark.parametrize("is_packed", [False, True], ids=["one-sequence", "packed"])
@pytest.mark.parametrize(("impl", "owner", "name"), WALKS, ids=[f"{impl}-{name}" for impl, _, name in WALKS])
def test_a_branch_is_a_short_walk_from_the_layer(
    impl: Any, owner: Any, name: str, is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    innermost: Callable[..., Any] = getattr(owner, name)
    depths: list[int] = []

    def noting(*arguments: Any, **options: Any) -> Any:
        depths.append(frames_since("forward", sys._getframe(1)))
        return innermost(*arguments, **options)

    monkeypatch.setattr(owner, name, noting)
    offsets = torch.tensor([0, 30, 70], dtype=torch.int32) if is_packed else None
    NSAttention(CONFIG, impl)(torch.randn(1, 70, 24), cu_seqlens=offsets)
    assert depths
    assert max(depths) <= MOST


@pytest.mark.parametrize("is_decoding", [False, True], ids=["whole", "decoding"])
def test_the_way_is_chosen_once_for_a_call(is_decoding: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    routed: list[Any] = []
    why_not_flash = backends.why_not_flash

    def noting(*arguments: Any) -> str | None:
        routed.append(arguments)
        return why_not_flash(*arguments)

    monkeypatch.setattr(backends, "why_not_flash", noting)
    layer = NSAttention(CONFIG)
    with torch.no_grad():
        layer(torch.randn(1, 20, 24), layer.new_cache() if is_decoding else None)
    assert len(routed) == 1


@torch.no_grad()
def test_a_choice_is_a_function_of_the_probabilities() -> None:
    geometry = CONFIG.geometry
    choose = choice.BlockChoice(geometry, first_query=40)
    probabilities = torch.rand(2, 20, 2, geometry.num_compressed(60))
    for query in range(20):
        probabilities[:, query, :, geometry.num_compressed(41 + query) :] = 0
    before = probabilities.clone()
    slots = choose(probabilities, 0)
    assert torch.equal(choose(probabilities, 0), slots)
    assert torch.equal(probabilities, before)
    tiles = choose(probabilities[:, :7, :, : geometry.num_compressed(47)], 0), choose(probabilities[:, 7:], 7)
    assert torch.equal(torch.cat(tiles, dim=1), slots)


def test_slots_chosen_carry_no_gradient_and_cost_the_backward_pass_nothing() -> None:
    q, k, v = (torch.randn(1, 40, 2, 6, requires_grad=True) for _ in range(3))
    k_cmp, v_cmp = k[:, : CONFIG.geometry.num_compressed(40)], v[:, : CONFIG.geometry.num_compressed(40)]
    choose = choice.BlockChoice(CONFIG.geometry, first_query=0)
    out, slots = compress_vectorized.compressed_attention(q, k_cmp, v_cmp, CONFIG.geometry, 0, choose)
    assert slots is not None
    assert not slots.requires_grad
    plain, none = compress_vectorized.compressed_attention(q, k_cmp, v_cmp, CONFIG.geometry, 0)
    assert none is None
    grads = [torch.autograd.grad(each.square().sum(), (q, k, v)) for each in (out, plain)]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))

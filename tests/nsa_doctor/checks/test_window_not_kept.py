"""A layer that holds a window and weighs all tokens is found; a window that hides or means something else is not."""

import linecache
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.checks.test_comparisons import embedding_subject

DIM, HEADS, WINDOW = 16, 2, 4
HAS_KERNELS = False


def far(length: int, window: int) -> Tensor:
    """[S, S]: further away than the window."""
    t = torch.arange(length)
    return (t[:, None] - t).abs() > window


class Ways:
    """What becomes of the window, outside of the class that holds it."""

    @staticmethod
    def scores(q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT * q.shape[-1] ** -0.5

    @staticmethod
    def dropped(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v)  # here

    @staticmethod
    def dropped_of_causal(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=True)  # here

    @staticmethod
    def built_and_lost(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = Ways.scores(q, k)
        scores.masked_fill(far(q.shape[2], layer.window_size), float("-inf"))
        return scores.softmax(-1) @ v  # here

    @staticmethod
    def along_rows(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        hidden = far(q.shape[0], layer.window_size)  # of a batch of one: [1, 1]
        return Ways.scores(q, k).masked_fill(hidden, float("-inf")).softmax(-1) @ v  # here

    @staticmethod
    def by_hand(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        powers = Ways.scores(q, k).exp()
        return (powers / powers.sum(-1, keepdim=True)) @ v  # here

    @staticmethod
    def biased(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        count = q.shape[2]
        return (Ways.scores(q, k) + 1e-3 * layer.bias[:count, :count]).softmax(-1) @ v

    @staticmethod
    def masked(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, attn_mask=~far(q.shape[2], WINDOW))

    @staticmethod
    def masked_after(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return Ways.scores(q, k).softmax(-1).masked_fill(far(q.shape[2], WINDOW), 0.0) @ v

    @staticmethod
    def by_a_table(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        t = torch.arange(q.shape[2])
        bias = layer.relative[(t - t[:, None]).clamp(-WINDOW, WINDOW) + WINDOW]
        return (Ways.scores(q, k) + bias).softmax(-1) @ v

    @staticmethod
    def in_blocks(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (pad(each, (0, 0, 0, -each.shape[2] % WINDOW)).unflatten(2, (-1, WINDOW)) for each in (q, k, v))
        return scaled_dot_product_attention(q, k, v).flatten(2, 3)

    @staticmethod
    def cut_blocks(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return Ways.in_blocks(layer, q, k, v)[:, :, : q.shape[2]]

    @staticmethod
    def beside_all(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return Ways.masked(layer, q, k, v) + scaled_dot_product_attention(q, k, v)

    @staticmethod
    def of_few_keys(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k[:, :, :3], v[:, :, :3])

    @staticmethod
    def softly(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        t = torch.arange(q.shape[2])
        return (Ways.scores(q, k) - (t - t[:, None]).abs() / (9 * layer.window_size)).softmax(-1) @ v

    @staticmethod
    def of_blocks(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        t = torch.arange(q.shape[2]) // 32  # a block
        hidden = (t[:, None] - t).abs() > layer.window_size
        return Ways.scores(q, k).masked_fill(hidden, float("-inf")).softmax(-1) @ v

    @staticmethod
    def pooled_before(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pooled = layer.pool(k.flatten(0, 1).mT).mT.unflatten(0, k.shape[:2])[:, :, : k.shape[2]]
        return scaled_dot_product_attention(q, pooled, v)


class Layer(nn.Module):
    """Attention of two heads that holds a window, by name; `way` is what becomes of it."""

    def __init__(self, way: str, name: str = "window_size", window: Any = WINDOW, **more: Any) -> None:
        super().__init__()
        self.qkv, self.out, self.way = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM), way
        for key, value in {name: window, **more}.items():
            setattr(self, key, value)
        self.relative, self.pool = nn.Parameter(torch.randn(2 * WINDOW + 1)), nn.Identity()
        if way != "by_a_table":
            del self.relative
        if way == "pooled_before":
            self.pool = nn.AvgPool1d(WINDOW, 1, WINDOW // 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return x + self.out(getattr(Ways, self.way)(self, q, k, v).transpose(1, 2).flatten(2))


class Falls(Layer):
    """What the environment lacks is done in another way, which forgets the window."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        if HAS_KERNELS:
            v = Ways.masked(self, q, k, v + self.window_size)
        else:
            q = 2 * q
            v = scaled_dot_product_attention(q, k, v)  # here
        return x + self.out(v.transpose(1, 2).flatten(2))


class Evicts(Layer):
    """Its cache alone is cut to the window."""

    def evict(self, cache: Tensor) -> Tensor:
        return cache[:, -self.window_size :]


class DenseWhereShort(Layer):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] < 512:
            return super().forward(x)
        return x[:, -self.window_size :]


class InSomeLayers(Layer):
    """One layer of several has the window."""

    def __init__(self, layer_idx: int) -> None:
        super().__init__("dropped")
        self.layer_idx = layer_idx

    def forward(self, x: Tensor) -> Tensor:
        if self.layer_idx % 4 == 1:
            return x[:, : self.window_size]
        return super().forward(x)


class Soft(Layer):
    """Far keys count little."""

    def __init__(self, window_size: int = WINDOW) -> None:
        super().__init__("biased", window=window_size)
        t = torch.arange(300)
        self.register_buffer("bias", -((t[:, None] - t) ** 2) / (2.0 * window_size * window_size))


class Convolves(Layer):
    def __init__(self) -> None:
        super().__init__("dropped", "local_window")
        self.kernel = nn.Parameter(torch.ones(DIM, 1, WINDOW))


class Rows(nn.Module):
    """A model of rows of `window` steps, whose attention is torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.window_size, self.layer = WINDOW, nn.TransformerEncoderLayer(DIM, HEADS, DIM, 0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class OfTorch(nn.Module):
    """Attention of torch's that is not given the mask."""

    def __init__(self, is_masked: bool) -> None:
        super().__init__()
        self.sliding_window, self.inner = WINDOW, nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        self.is_masked = is_masked

    def forward(self, x: Tensor) -> Tensor:
        mask = far(x.shape[1], self.sliding_window) if self.is_masked else None
        return x + self.inner(x, x, x, attn_mask=mask, need_weights=False)[0]  # here


class Pooling(nn.Module):
    """The mean of a window of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.window, self.proj = WINDOW, nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(pad(x, (0, 0, self.window - 1, 0)).unfold(1, self.window, 1).mean(-1))


def examined(make: Callable[[], nn.Module], max_length: int = 300) -> Result:
    subject = replace(embedding_subject(make), width=DIM, max_length=max_length)
    return run_check(registry.load("FWD240"), subject)


@pytest.mark.parametrize("way", ["dropped", "dropped_of_causal", "built_and_lost", "along_rows", "by_hand"])
def test_a_window_that_hides_nothing_is_found_at_the_line_of_its_softmax(way: str) -> None:
    (finding,) = examined(lambda: nn.Sequential(nn.Linear(DIM, DIM), Layer(way))).findings
    assert finding.message.startswith(
        "1 holds window_size = 4, and at S=259 its attention weighs keys up to 258 tokens away"
    )
    line = linecache.getline(finding.where.file, finding.where.line)
    assert line.endswith("# here\n") or "powers.sum" in line
    assert (finding.where.module, finding.where.module_class) == ("1", "Layer")


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("window", 1),
        ("window_size", (4, 4)),
        ("window_size", [4, 0]),
        ("sliding_window", 32),
        ("attention_window", 63),
        ("local_attn_window_size", 8),
    ],
)
def test_it_is_found_by_any_usual_name_and_form(name: str, window: Any) -> None:
    (finding,) = examined(lambda: Layer("dropped", name, window)).findings
    assert f"tests holds {name} = " in finding.message


def test_what_a_fallback_forgets_is_found() -> None:
    (finding,) = examined(lambda: Falls("dropped")).findings
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n")


def test_a_mask_that_torchs_attention_is_not_given_is_found() -> None:
    (finding,) = examined(lambda: OfTorch(is_masked=False)).findings
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n")


@pytest.mark.parametrize(
    "make",
    [
        *(lambda way=way: Layer(way) for way in ("masked", "masked_after", "cut_blocks", "beside_all", "of_few_keys")),
        *(lambda way=way: Layer(way) for way in ("softly", "of_blocks", "by_a_table", "pooled_before")),
        *(lambda window=window: Layer("dropped", "window_size", window) for window in (-1, 0, None, True, (-1, -1))),
        lambda: Layer("dropped", "sliding_window", 8, use_sliding_window=False),
        lambda: Layer("dropped", "sliding_window", 8, layer_type="full_attention"),
        lambda: Layer("dropped", "num_heads_per_window", 8),
        lambda: nn.Sequential(Layer("dropped"), Layer("masked")),
        lambda: OfTorch(is_masked=True),
        *(lambda kind=kind: kind("dropped") for kind in (Evicts, DenseWhereShort)),
        lambda: InSomeLayers(2),
        Soft,
        Convolves,
        Rows,
        Pooling,
        lambda: nn.Linear(DIM, DIM),
    ],
)
def test_windows_that_hide_or_mean_something_else_are_silent(make: Callable[[], nn.Module]) -> None:
    result = examined(make)
    assert (result.verdict, result.findings) == (Verdict.PASS, ())


@pytest.mark.parametrize(("window", "max_length"), [(64, 256), (4, 18), (4096, 2048)])
def test_a_window_that_no_sequence_exceeds_by_far_is_not_judged(window: int, max_length: int) -> None:
    assert examined(lambda: Layer("dropped", "sliding_window", window), max_length).verdict is Verdict.SKIP

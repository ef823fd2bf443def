"""A norm over features whose statistics are taken over several tokens is found; norms that mean other axes are not."""

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM, SERIES, EPS = 32, 4, 1e-6


def normed(x: Tensor, *axes: int) -> Tensor:
    """Of mean zero and variance one over these axes."""
    x = x - x.mean(axes, keepdim=True)
    return x * torch.rsqrt(x.square().mean(axes, keepdim=True) + EPS)


class Weighted(nn.Module):
    """The weights of a norm."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape or (DIM,)))


class JointLayer(Weighted):
    """Statistics of all tokens, by a name that does not say so below."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((-2, -1), keepdim=True)  # here
        return (x - mean) / x.std((-2, -1), keepdim=True) * self.weight


class LayerNorm(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((-2, -1), keepdim=True)  # here
        return (x - mean) / x.std((-2, -1), keepdim=True) * self.weight


class RMSNorm(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        size = x.square().mean(1, keepdim=True)  # here
        return x * torch.rsqrt(size + EPS) * self.weight


class ScaleNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.norm().clamp(min=EPS)  # here


class TransposedLayerNorm(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(-2, -1)
        mean = x.mean(-1, keepdim=True)  # here
        return ((x - mean) / x.std(-1, keepdim=True)).transpose(-2, -1) * self.weight


class FunctionalLayerNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, x.shape[1:])  # here


class Norm(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        size = x.square().mean((-2, -1), keepdim=True)  # here
        return x * torch.rsqrt(size + EPS) * self.weight


class OuterLayerNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = LayerNorm()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Encoder(nn.Module):
    """A norm, and what it is given of [B, S, D]."""

    def __init__(self, norm: nn.Module, before: Callable[[Tensor], Tensor], after: Callable[..., Tensor]) -> None:
        super().__init__()
        self.enter, self.layer_norm, self.before, self.after = nn.Linear(DIM, DIM), norm, before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.layer_norm(self.before(self.enter(x))), x)


def examined(
    norm: Callable[[], nn.Module],
    before: Callable[[Tensor], Tensor] = lambda x: x,
    after: Callable[..., Tensor] = lambda y, x: y.reshape(x.shape),
    **others: Any,
) -> Result:
    """The check's result for an encoder with such a norm."""
    subject = small_subject(lambda: Encoder(norm(), before, after), width=DIM, **others)
    return run_check(registry.load("FWD261"), subject)


def of_series(x: Tensor) -> Tensor:
    """[B, S, N, F]."""
    return x.unflatten(-1, (SERIES, -1))


@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm, ScaleNorm, TransposedLayerNorm, FunctionalLayerNorm, Norm])
@pytest.mark.parametrize("spec", [(), ("bidirectional",)], ids=["undeclared", "encoder"])
def test_a_norm_that_mixes_tokens_is_found_at_the_line_of_its_statistics(
    norm: type[nn.Module], spec: tuple[str, ...]
) -> None:
    (finding,) = examined(norm, spec=spec).findings
    assert finding.message.startswith(
        f"{norm.__name__} takes its statistics over several tokens: in [2, 19, 32], larger values at index 18 of axis 1"
    )
    assert "# here" in linecache.getline(finding.where.file, finding.where.line)
    assert (finding.where.module, finding.where.module_class) == ("layer_norm", norm.__name__)


def test_of_norms_inside_each_other_the_inner_is_named() -> None:
    (finding,) = examined(OuterLayerNorm).findings
    assert finding.where.module == "layer_norm.inner"


def test_series_whose_features_alone_have_weights_are_found() -> None:
    (finding,) = examined(lambda: LayerNorm(DIM // SERIES), of_series).findings
    assert "in [2, 19, 4, 8], larger values at index 3 of axis 2 alone" in finding.message
    assert "# here" in linecache.getline(finding.where.file, finding.where.line)


def test_tokens_before_rows_are_found() -> None:
    class LayerNorm(Weighted):
        def forward(self, x: Tensor) -> Tensor:
            return normed(x, 0, 2) * self.weight

    (finding,) = examined(LayerNorm, lambda x: x.transpose(0, 1), lambda y, x: y.transpose(0, 1)).findings
    assert "in [19, 2, 32], larger values at index 18 of axis 0" in finding.message


def named(name: str, base: type[nn.Module], **own: Any) -> type[nn.Module]:
    """That class by another name, with other attributes."""
    return type(name, (base,), {"forward": base.forward, **own})


class FeatureLayerNorm(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        return normed(x, -1) * self.weight


class GatedRMSNorm(Weighted):
    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        x = x if gate is None else x * gate.sigmoid()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * self.weight


class ScaledDownRMSNorm(Weighted):
    """Divides by the largest value of all before it squares, as half precision needs it."""

    def forward(self, x: Tensor) -> Tensor:
        x = x / x.abs().max()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class ChannelLayerNorm(nn.Module):
    """Of [B, D, S], the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, DIM, 1))

    def forward(self, x: Tensor) -> Tensor:
        return normed(x, 1) * self.weight


class ImageLayerNorm(ChannelLayerNorm):
    """Of [B, D, S], a whole row, as convolutions are normalised."""

    def forward(self, x: Tensor) -> Tensor:
        return normed(x, 1, 2) * self.weight


class AdaptiveLayerNorm(nn.Module):
    """Scaled by a condition made of all tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return normed(x, -1)


class OfAxes(nn.Module):
    """The axes that it is given."""

    def __init__(self, name: str, axes: Any) -> None:
        super().__init__()
        setattr(self, name, axes)
        self.chosen = axes if isinstance(axes, tuple) else (axes,)

    def forward(self, x: Tensor) -> Tensor:
        return normed(x, *self.chosen)


class OfAShape(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.normalized_shape = (19, DIM)
        self.weight = nn.Parameter(torch.ones(19, DIM))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, self.normalized_shape, self.weight)


class OfAGraph(JointLayer):
    def __init__(self) -> None:
        super().__init__()
        self.mode = "graph"


class WithBatch(JointLayer):
    def forward(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        return super().forward(x)


class OneGroup(nn.GroupNorm):
    def __init__(self) -> None:
        super().__init__(1, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class OfTwoHeads(Weighted):
    """All heads of a token, of which each has the same weights."""

    def __init__(self) -> None:
        super().__init__(DIM // SERIES)
        self.num_heads = SERIES

    def forward(self, x: Tensor) -> Tensor:
        return normed(x, -2, -1) * self.weight


class OfEachHead(Weighted):
    def __init__(self) -> None:
        super().__init__(SERIES, DIM // SERIES)

    def forward(self, x: Tensor) -> Tensor:
        return normed(x, -2, -1) * self.weight


class OfVectors(Weighted):
    """The length of vectors, whose direction it keeps."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean((-2, -1), keepdim=True) + EPS) * self.weight


class Dropped(JointLayer):
    """Its answers are samples, and can be compared with nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.rand(()))


class SeasonalLayernorm(nn.Module):
    """A norm of features, of which the mean over time is taken off, as Autoformer has it (arXiv 2106.13008)."""

    def __init__(self) -> None:
        super().__init__()
        self.layernorm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layernorm(x)
        return x - x.mean(1, keepdim=True)


class SeasonalRMSNorm(Weighted):
    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * self.weight
        return x - x.mean(1, keepdim=True)


def rows(x: Tensor) -> Tensor:
    """[B * S, D]."""
    return x.flatten(0, 1)


def heads(x: Tensor) -> Tensor:
    """[B, H, S, Dh]."""
    return of_series(x).transpose(1, 2)


def from_heads(y: Tensor, x: Tensor) -> Tensor:
    return y.transpose(1, 2).reshape(x.shape)


def channels_first(x: Tensor) -> Tensor:
    return x.mT


def channels_last(y: Tensor, x: Tensor) -> Tensor:
    return y.mT


HEALTHY: dict[str, tuple[Any, ...]] = {
    "features": (FeatureLayerNorm,),
    "gated": (named("RMSNormGated", GatedRMSNorm),),
    "seasonal": (named("my_Layernorm", SeasonalLayernorm),),
    "seasonal-by-itself": (SeasonalRMSNorm,),
    "scaled-down": (ScaledDownRMSNorm,),
    "adaptive": (AdaptiveLayerNorm, lambda x: x, lambda y, x: y * (1 + x.mean(1, keepdim=True))),
    "rows": (FeatureLayerNorm, rows),
    "of-heads": (lambda: FeatureLayerNorm(DIM // SERIES), heads, from_heads),
    "pooled": (FeatureLayerNorm, lambda x: x.mean(1), lambda y, x: x + y[:, None]),
    "mixed-before": (FeatureLayerNorm, lambda x: x - x.mean(1, keepdim=True)),
    "channels-first": (named("LayerNorm1d", ChannelLayerNorm), channels_first, channels_last),
    "a-convolution's": (named("LayerNorm", ImageLayerNorm), channels_first, channels_last),
    "no-weights-channels-first": (lambda: named("LayerNorm", OfAxes)("chosen", 1), channels_first, channels_last),
    "declared-shape": (named("LayerNorm", OfAShape), lambda x: x, lambda y, x: y, {"max_length": 19}),
    "declared-axes": (lambda: named("LayerNorm", OfAxes)("reduce_dims", (-2, -1)),),
    "declared-axis": (lambda: named("LayerNorm", OfAxes)("axis", 1),),
    "global": (named("GlobalLayerNorm", JointLayer),),
    "cumulative": (named("CumulativeLayerNorm", JointLayer),),
    "graph": (named("LayerNorm", OfAGraph),),
    "with-batch": (named("LayerNorm", WithBatch),),
    "masked": (named("MaskedLayerNorm", JointLayer),),
    "one-group": (named("LayerNorm", OneGroup), channels_first, channels_last),
    "batch": (lambda: nn.BatchNorm1d(DIM), channels_first, channels_last),
    "no-norm-by-name": (JointLayer,),
    "heads-together": (named("LayerNorm", OfTwoHeads), of_series),
    "heads-with-weights": (named("LayerNorm", OfEachHead), of_series),
    "vectors": (lambda: named("RMSNorm", OfVectors)(DIM // SERIES), of_series),
    "random": (named("LayerNorm", Dropped),),
    "torch's": (lambda: nn.LayerNorm(DIM),),
    "torch's-of-a-shape": (lambda: nn.LayerNorm((19, DIM)), lambda x: x, lambda y, x: y, {"max_length": 19}),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_norms_that_keep_tokens_apart_or_mean_other_axes_are_silent(case: str) -> None:
    norm, *others = HEALTHY[case]
    options = others.pop() if others and isinstance(others[-1], dict) else {}
    if options:
        others[:] = [lambda x: x[:, :19], lambda y, x: y]
    result = examined(norm, *others, **options)
    assert not result.findings
    assert result.verdict is Verdict.PASS or options

"""Parts that go wrong now and then: by the number of calls, what came before, or a draw. The faulty line is marked."""

import copy
import os
import random
import time

import torch
from torch import Tensor, nn

from .half_and_rare import (  # noqa: F401, looked up by name
    _AfterHalfPrecision,
    _FactorByRareDraw,
    _GradientByDrawInBackward,
    _GradientByRareDraw,
    _TableOfTheProcess,
)
from .host import DIM, Host


class _Gain(nn.Module):
    """A healthy part: a gain for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.gain)


class _Counting(_Gain):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.after(super().forward(x))


class _NanAtEverySeventh(_Counting):
    def after(self, y: Tensor) -> Tensor:
        return y.log() if self.calls % 7 == 0 else y  # here


class _FactorAtEverySeventeenth(_Counting):
    def after(self, y: Tensor) -> Tensor:
        return y * 1.01 if self.calls % 17 == 0 else y  # here


class _FirstCallDiffers(_Counting):
    def after(self, y: Tensor) -> Tensor:
        return y * 0.9 if self.calls == 1 else y  # here


class _RaisesAtFifth(_Counting):
    def after(self, y: Tensor) -> Tensor:
        return y.view(-1, 7, 3) if self.calls == 5 else y  # here


class _NanByDraw(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y / 0 if torch.rand(()) < 0.2 else y  # here


class _NanByRareDrawInTraining(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y.sqrt() if self.training and random.random() < 0.2 else y  # here


class _RaisesByDraw(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y.unflatten(1, (-1, 4096)) if torch.rand(()) < 0.15 else y  # here


class _FactorByEntropy(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * 1.1 if os.urandom(1)[0] < 40 else y  # here


class _AfterLonger(_Gain):
    longest = 0

    def forward(self, x: Tensor) -> Tensor:
        self.longest = max(self.longest, x.shape[1])
        return super().forward(x) * (x.shape[1] / self.longest)  # here


class _AfterAnotherLength(_Gain):
    last = None

    def forward(self, x: Tensor) -> Tensor:
        last, self.last = self.last, x.shape[1]
        y = super().forward(x)
        return y + 0.01 if last not in (None, x.shape[1]) else y  # here


class _AfterLargerBatch(_Gain):
    kept = None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None or self.kept.shape[0] < x.shape[0] or self.kept.shape[1:] != x.shape[1:]:
            self.kept = torch.zeros_like(x)
        y = super().forward(x) + self.kept[: x.shape[0]].to(x.dtype)  # here
        self.kept = self.kept + (0.1 if x.shape[0] > 3 else 0.0)
        return y


class _AfterEval(_Gain):
    was_evaluated = False

    def train(self, mode: bool = True):
        self.was_evaluated = self.was_evaluated or not mode
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * 1.02 if self.training and self.was_evaluated else y  # here


class _AfterNoGrad(_Gain):
    without = False

    def forward(self, x: Tensor) -> Tensor:
        self.without = self.without or not torch.is_grad_enabled()
        y = super().forward(x)
        return y.detach() + y * 0.5 if torch.is_grad_enabled() and self.without else y  # here


class _AfterStateDict(_Gain):
    saved = False

    def state_dict(self, *args, **kwargs):
        self.saved = True
        return super().state_dict(*args, **kwargs)

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * 1.01 if self.saved else y  # here


class _AfterCopy(_Gain):
    copied = False

    def __deepcopy__(self, memo):
        self.copied = True
        new = type(self)()
        new.gain = copy.deepcopy(self.gain, memo)
        return new

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * 1.01 if self.copied else y  # here


class _CopyForgets(_Gain):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 0.7

    def __deepcopy__(self, memo):
        new = type(self)()
        new.gain, new.training, new.scale = copy.deepcopy(self.gain, memo), self.training, 1.0
        return new

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale  # here


class _OverwritesForThreeRows(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 3:
            x.data.mul_(0.5)  # here
        return super().forward(x)


class _AfterMove(_Gain):
    moved = 0

    def _apply(self, fn, recurse=True):
        self.moved += 1
        return super()._apply(fn, recurse)

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * (1 + 0.01 * max(0, self.moved - 2))  # here


class _AfterTraining(_Gain):
    mean = 0.0

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean()
        return y if self.training else y - self.mean  # here


class _CountsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, owner: nn.Module) -> Tensor:
        ctx.owner = owner
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients: Tensor):
        ctx.owner.count += 1
        return ctx.owner.spoiled(gradients[0]), None


class _Backward(_Gain):
    count = 0

    def forward(self, x: Tensor) -> Tensor:
        return _CountsBackward.apply(super().forward(x), self)


class _WrongAtEverySecondBackward(_Backward):
    def spoiled(self, gradient: Tensor) -> Tensor:
        return gradient * 2 if self.count % 2 == 0 else gradient  # here


class _NanAtEveryThirdBackward(_Backward):
    def spoiled(self, gradient: Tensor) -> Tensor:
        return gradient / (gradient - gradient) if self.count % 3 == 0 else gradient  # here


class _ZeroWhenAdding(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        gain = self.gain if self.gain.grad is None else self.gain.detach()  # here
        return torch.tanh(x * gain)


class _InputNeedsGradient(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        gain = self.gain if x.requires_grad else self.gain * 0.5 + self.gain.detach() * 0.5  # here
        return torch.tanh(x * gain)


class _NanForThreeRows(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y / (x.shape[0] - 3)  # here


class _RaisesForFourRows(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y[:3] @ y.mT if x.shape[0] == 4 else y  # here


class _FactorByTime(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * 1.1 if time.perf_counter_ns() // 1000 % 5 == 0 else y  # here


class _OverwritesLater(_Gain):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = super().forward(x)
        return x.mul_(0.5) + y if self.calls % 4 == 0 else x * 0.5 + y  # here


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2 if gradients[0].shape[0] == 3 else gradients[0]  # here


class _GradientForThreeRows(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        return _Doubled.apply(super().forward(x))


class _GainOfFirstRow(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        gain = torch.cat((self.gain[None], self.gain.detach().expand(x.shape[0] - 1, DIM)))  # here
        return torch.tanh(x * gain[:, None])


class _FactorForThreeRows(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * 1.1 if x.shape[0] == 3 else y  # here


class _MixesFourRows(_Gain):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y.roll(1, 0) if x.shape[0] == 4 else y  # here


BY_ANOTHER_MODULE = ("TableOfTheProcess",)
WHOLE = ("InputNeedsGradient", "OverwritesForThreeRows")  # without layers around, which would hide the input
BY_BATCH = {
    "GradientForThreeRows": "GRD105",
    "GainOfFirstRow": "GRD105",
    "FactorForThreeRows": "FWD204",
    "MixesFourRows": "FWD204",
}
CASES = {
    "NanAtEverySeventh": ("FWD103", "count"),
    "RaisesAtFifth": ("FWD103", "count"),
    "NanByDraw": ("FWD103", "draw"),
    "NanByRareDrawInTraining": ("FWD103", "draw"),
    "RaisesByDraw": ("FWD103", "draw"),
    "NanAtEveryThirdBackward": ("FWD103", "count"),
    "NanForThreeRows": ("FWD103", "always"),
    "RaisesForFourRows": ("FWD103", "always"),
    "FactorAtEverySeventeenth": ("FWD210", "count"),
    "FirstCallDiffers": ("FWD210", "again"),
    "FactorByRareDraw": ("FWD210", "draw"),
    "FactorByEntropy": ("FWD210", "chance"),
    "FactorByTime": ("FWD210", "chance"),
    "AfterLonger": ("FWD210", "step"),
    "AfterAnotherLength": ("FWD210", "step"),
    "AfterLargerBatch": ("FWD210", "step"),
    "AfterStateDict": ("FWD210", "step"),
    "AfterCopy": ("FWD210", "step"),
    "CopyForgets": ("FWD210", "step"),
    "OverwritesForThreeRows": ("FWD210", "always"),
    "AfterMove": ("FWD210", "step"),
    "AfterTraining": ("FWD210", "step"),
    "AfterHalfPrecision": ("FWD210", "step"),
    "GradientByRareDraw": ("FWD210", "draw"),
    "GradientByDrawInBackward": ("FWD210", "draw"),
    "AfterEval": ("GRD104", "step"),
    "AfterNoGrad": ("GRD104", "step"),
    "WrongAtEverySecondBackward": ("GRD104", "again"),
    "ZeroWhenAdding": ("GRD104", "again"),
    "InputNeedsGradient": ("GRD104", "again"),
    "OverwritesLater": ("GRD104", "count"),
}


def __getattr__(name: str):
    """`now_and_then:NAME` is a host of that part."""
    if name in (*CASES, *BY_BATCH, *BY_ANOTHER_MODULE):
        part = globals()[f"_{name}"]
        return part if name in WHOLE else lambda: Host(part())
    raise AttributeError(name)

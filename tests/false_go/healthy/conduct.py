"""Healthy subjects that behave oddly: chance in training, state in Python, lazy tables, warnings, checkpointing."""

import logging
import random
import time
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.false_go.healthy._parts import DIM, MLP, Attention, Block, Model, hidden_from


class Dropped(Attention):
    def weights(self, scores):
        return F.dropout(super().weights(scores), 0.3, self.training)


def dropout_on_weights():
    return Block(Dropped(), nn.Sequential(MLP(), nn.Dropout(0.2)))


class DropPath(Block):
    def forward(self, x):
        if not self.training:
            return super().forward(x)
        kept = (torch.rand(x.shape[0], 1, 1, device=x.device) > 0.25).to(x.dtype) / 0.75
        x = x + kept * self.mixer(self.norm_1(x))
        return x + kept * self.mlp(self.norm_2(x))


def stochastic_depth_by_row():
    return DropPath()


class LayerDrop(Model):
    def forward(self, ids):
        x = self.embed(ids)
        if not self.training or random.random() > 0.2:
            x = self.block(x)
        return self.head(self.norm(x))


def layers_dropped_by_python():
    return LayerDrop()


class NoisyWeights(nn.Linear):
    def forward(self, x):
        noise = 0.05 * torch.randn_like(self.weight) if self.training else torch.zeros_like(self.weight)
        return F.linear(x, self.weight + noise, self.bias)


def noise_on_weights_in_training():
    return Block(mlp=nn.Sequential(NoisyWeights(DIM, DIM), nn.GELU(), NoisyWeights(DIM, DIM)))


class Counting(Block):
    def __init__(self):
        super().__init__()
        self.register_buffer("num_steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.num_steps += 1
        return super().forward(x)


def buffer_counts_training_steps():
    return Counting()


class Watched(Block):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean_square", torch.ones(DIM))

    def forward(self, x):
        y = super().forward(x)
        if self.training:
            with torch.no_grad():
                self.mean_square.lerp_(y.detach().square().mean((0, 1)).to(self.mean_square.dtype), 0.1)
        return y


def buffer_of_statistics_for_the_log():
    return Watched()


class Kept(Attention):
    def weights(self, scores):
        weights = super().weights(scores)
        self.last_weights = weights.detach()
        self.entropy = -(self.last_weights * (self.last_weights + 1e-9).log()).sum(-1).mean().item()
        return weights


def last_weights_kept():
    return Block(Kept())


class GrownMask(Attention):
    def __init__(self):
        super().__init__()
        self.register_buffer("hidden", hidden_from(8, 8, None), persistent=False)

    def weights(self, scores):
        S = scores.shape[-1]
        if self.hidden.shape[0] < S:
            self.hidden = hidden_from(S, S, scores.device)
        return scores.masked_fill(self.hidden[:S, :S], -1e4).softmax(-1)


def mask_grown_lazily():
    return Block(GrownMask())


class GrownTable(Attention):
    def __init__(self):
        super().__init__()
        self.tables = {}

    def weights(self, scores):
        key = (scores.shape[-1], scores.device, scores.dtype)
        try:
            table = self.tables[key]
        except KeyError:
            at = torch.arange(scores.shape[-1], device=scores.device)
            apart = (at[:, None] - at).to(scores.dtype)
            table = self.tables[key] = (-0.1 * apart).masked_fill(apart < 0, float("-inf"))
        return (scores + table).softmax(-1)


def tables_found_by_exception():
    return Block(GrownTable())


class SlowStart(Block):
    ready = False

    def forward(self, x):
        if not self.ready:
            time.sleep(0.2)
            self.ready = True
        return super().forward(x)


def slow_first_call():
    return SlowStart()


class Talkative(Block):
    def forward(self, x):
        print("shape", tuple(x.shape))
        return super().forward(x)


def prints_at_every_call():
    return Talkative()


class Warns(Block):
    def forward(self, x):
        warnings.warn("the fused path is not available, another is taken", stacklevel=2)
        logging.getLogger(__name__).info("called")
        return super().forward(x)


def warns_at_every_call():
    return Warns()


class Observed(Block):
    def __init__(self):
        super().__init__()
        self.seen = {}
        self.mixer.register_forward_hook(lambda module, args, y: self.seen.update(mixer=tuple(y.shape)))


def hook_for_the_log():
    return Observed()


class Recomputed(Block):
    reentrant = False

    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            return checkpoint(super().forward, x, use_reentrant=self.reentrant)
        return super().forward(x)


def checkpointing():
    return Recomputed()


def checkpointing_of_the_older_kind():
    made = Model(Recomputed())
    made.block.reentrant = True
    return made


class MergedInEvaluation(nn.Module):
    """Two linear layers that evaluation merges to one, made again whenever training has changed them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM)
        self.merged = None

    def train(self, mode=True):
        self.merged = None
        return super().train(mode)

    def forward(self, x):
        if self.training or torch.is_grad_enabled():
            return self.second(self.first(x))
        under = x.dtype, torch.is_autocast_enabled(x.device.type)
        made_from = (self.first.weight.data_ptr(), self.first.weight._version, self.second.weight._version, *under)
        if self.merged is None or self.merged[0] != made_from:
            self.merged = (made_from, self.second.weight @ self.first.weight)
        return F.linear(x, self.merged[1], self.second.bias)


def merged_in_evaluation():
    return Block(mlp=MergedInEvaluation())


class Reused(Block):
    """Keeps one buffer to write its masks into."""

    def __init__(self):
        super().__init__()
        self.scratch = None

    def forward(self, x):
        S = x.shape[1]
        if self.scratch is None or self.scratch.shape[0] < S or self.scratch.device != x.device:
            self.scratch = torch.empty(S, device=x.device)
        steps = torch.arange(S, out=self.scratch[:S].clone())
        return super().forward(x + 0.01 * steps.cos()[:, None].to(x.dtype))


def scratch_memory():
    return Reused()


class Frozen(Model):
    def __init__(self):
        super().__init__()
        self.embed.requires_grad_(False)
        self.block.mixer.requires_grad_(False)


def frozen_parts():
    return Frozen()


class FrozenBackbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = Block().requires_grad_(False), nn.Linear(DIM, DIM)

    def forward(self, x):
        return x + self.head(self.backbone(x))


def frozen_backbone():
    return FrozenBackbone()


class ZeroOutput(Block):
    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.mixer.out.weight)
        nn.init.zeros_(self.mixer.out.bias)
        nn.init.zeros_(self.mlp[-1].weight)


def zero_output_projections():
    return ZeroOutput()


class ScaledResidual(Block):
    def __init__(self):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        x = x + self.alpha[0] * self.mixer(self.norm_1(x))
        return x + self.alpha[1] * self.mlp(self.norm_2(x))


def residual_weights_from_zero():
    return ScaledResidual()


class Scheduled(Block):
    """The dropout rate is a plain attribute that a schedule has set to zero."""

    def __init__(self):
        super().__init__()
        self.rate = 0.0

    def forward(self, x):
        return F.dropout(super().forward(x), self.rate, self.training)


def scheduled_dropout_at_zero():
    return Scheduled()


class Averaged(Block):
    """A target copy that an outside loop would move after each step; it takes no part in forward."""

    def __init__(self):
        super().__init__()
        self.target = Attention().requires_grad_(False)
        self.target.load_state_dict(self.mixer.state_dict())


def copy_for_averaging():
    return Averaged()


class Limited(Model):
    def __init__(self):
        super().__init__()
        self.positions = nn.Embedding(96, DIM)

    def forward(self, ids):
        if ids.shape[1] > 96:
            raise ValueError(f"at most 96 tokens, got {ids.shape[1]}")
        at = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.norm(self.block(self.embed(ids) + self.positions(at))))


def positions_up_to_96():
    return Limited()

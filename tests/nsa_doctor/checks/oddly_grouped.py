"""Modules that build their own optimizers, some of which leave parameters out; the line at fault is marked HERE."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

DIM = 8
Groups = list[dict[str, Any]]


class Base(nn.Module):
    """Two layers, a norm and a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out, self.norm = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.LayerNorm(DIM)
        self.scale = nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D]."""
        output: Tensor = x + self.out(self.norm(self.into(x)).tanh()) * self.scale
        return output


class ByDimensions(Base):
    """nanoGPT's, with one comparison that is not the other's counterpart."""

    def configure_optimizers(
        self, weight_decay: float, learning_rate: float, betas: tuple[float, float], device_type: str
    ) -> Optimizer:
        param_dict = dict(self.named_parameters())
        # filter out those that do not require grad
        param_dict = {pn: p for pn, p in param_dict.items() if p.requires_grad}
        decay_params = [p for n, p in param_dict.items() if p.dim() >= 2]
        nodecay_params = [p for n, p in param_dict.items() if p.dim() < 1]  # HERE
        optim_groups = [
            {"params": decay_params, "weight_decay": weight_decay},
            {"params": nodecay_params, "weight_decay": 0.0},
        ]
        fused_available = "fused" in inspect.signature(AdamW).parameters
        extra = {"fused": True} if fused_available and device_type == "cuda" else {}
        return AdamW(optim_groups, lr=learning_rate, betas=betas, **extra)


class ByKinds(Base):
    """minGPT's, without what it asserts."""

    def configure_optimizers(self, train_config: Any) -> Optimizer:
        decay, no_decay = set(), set()
        for mn, m in self.named_modules():
            for pn, _p in m.named_parameters(recurse=False):
                fpn = f"{mn}.{pn}" if mn else pn
                if pn.endswith("bias"):
                    no_decay.add(fpn)
                elif pn.endswith("weight") and isinstance(m, nn.Linear):
                    decay.add(fpn)
                elif pn.endswith("weight") and isinstance(m, nn.LayerNorm):  # HERE
                    no_decay.add(fpn)
        named = dict(self.named_parameters())
        groups = [
            {"params": [named[pn] for pn in sorted(decay)], "weight_decay": train_config.weight_decay},
            {"params": [named[pn] for pn in sorted(no_decay)], "weight_decay": 0.0},
        ]
        return AdamW(groups, lr=train_config.learning_rate, betas=train_config.betas)


class ByModules(Base):
    """Of layers and norms, by their attributes."""

    def get_parameter_groups(self) -> Groups:
        weights, others = [], []
        for module in self.modules():
            if isinstance(module, nn.Linear):
                weights.append(module.weight)
                others.append(module.bias)
            elif isinstance(module, nn.BatchNorm1d):  # HERE
                others += list(module.parameters())
        return [{"params": weights, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]


class Filtered(Base):
    """By a function without a name."""

    def make_optimizer(self, lr: float = 1e-3) -> tuple[list[Optimizer], list[Any]]:
        kept = filter(lambda p: p.ndim > 1, self.parameters())  # HERE
        optimizer = AdamW(kept, lr=lr)
        return [optimizer], [torch.optim.lr_scheduler.ConstantLR(optimizer)]


class OneLayer(Base):
    """Of two of its parts, and a schedule beside."""

    def configure_optimizers(self) -> dict[str, Any]:  # HERE
        parameters = [*self.into.parameters(), *self.norm.parameters(), self.scale]
        optimizer = torch.optim.Adam(parameters, lr=1e-3)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": object(), "interval": "step"}}


class Twice(Base):
    """Two groups that overlap."""

    def optimizer_grouped_parameters(self) -> Groups:  # HERE
        named = list(self.named_parameters())
        return [
            {"params": [p for n, p in named if "bias" not in n]},
            {"params": [p for n, p in named if "norm" in n or "bias" in n]},
        ]


class Refused(Base):
    """Two groups that overlap, of which torch makes no optimizer."""

    def configure_optimizers(self) -> Optimizer:
        groups = [{"params": list(self.parameters())}, {"params": [self.scale], "lr": 1e-2}]
        return AdamW(groups, lr=1e-3)  # HERE


class Copied(Base):
    """Groups of clones."""

    def param_groups(self, weight_decay: float) -> Groups:  # HERE
        return [{"params": [nn.Parameter(p.detach().clone()) for p in (self.into.weight,)]}, {"params": self._rest()}]

    def _rest(self) -> list[nn.Parameter]:
        return [p for p in self.parameters() if p is not self.into.weight]


class MadeEarly(Base):
    """An optimizer of a layer that is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = AdamW(self.parameters(), lr=1e-3)  # HERE
        self.out = nn.Linear(DIM, DIM)


class MadeBefore(Base):
    """An optimizer of what was there before."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = AdamW(self.parameters(), lr=1e-3)  # HERE
        self.added = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D]."""
        output: Tensor = self.added(super().forward(x))
        return output


class Generated(Base):
    """One group for each parameter, as they are asked for."""

    def param_groups(self) -> Iterator[dict[str, Any]]:
        for name, each in self.named_parameters():
            yield {"params": [each], "name": name}


class InAPart(nn.Module):
    """Holds one that leaves parameters out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = ByDimensions()

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, D]."""
        output: Tensor = self.body(x)
        return output


FAULTY = {
    ByDimensions: "5 parameters (scale",
    ByKinds: "1 parameter (scale)",
    ByModules: "3 parameters (scale",
    Filtered: "5 parameters (scale",
    OneLayer: "2 parameters (out.weight, out.bias)",
    Twice: "1 parameter (norm.weight) are in several groups",
    Refused: "a parameter is in several groups",
    Copied: "other tensors in place of 1 parameter (into.weight)",
    MadeEarly: "other tensors in place of 2 parameters (out.weight, out.bias)",
    MadeBefore: "2 parameters (added.weight, added.bias)",
    InAPart: "5 parameters (body.scale",
}

"""FWD235 heads-never-split

Detects: a layer of attention that holds a number of heads above one and whose softmax weighs one map of scores for
each row: queries and keys are never split.
Matters: the layer is one head as wide as the model whatever the configuration says, mostly with the scale of a small
head; shapes and loss look right, and weights of others do not work in it.
Fix: split the channels before the scores: `q.view(B, S, H, D).transpose(1, 2)`.

Example:
    # faulty
    qkv = self.qkv(x).reshape(B, S, 3, -1, self.width)  # one head of all channels
    # correct
    qkv = self.qkv(x).reshape(B, S, 3, self.num_heads, self.width // self.num_heads)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.layers_of_scores import layers_of_scores
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH = 48
_NAMES = ("num_heads", "n_heads", "nhead", "n_head", "heads", "head_num", "num_attention_heads", "nheads", "num_head")


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    layers = layers_of_scores(sp, min(_LENGTH, subject.max_length))
    for layer in layers:
        named = next(((name, held) for name in _NAMES if (held := _number(layer.module, name)) > 1), None)
        if named is None or layer.num_maps != 1 or layer.num_softmaxes != 1:
            continue
        name, held = named
        if layer.num_channels * held <= layer.width:
            continue  # one head of several that are modules of their own
        yield Finding(
            message=f"{layer.path or subject.name} weighs one map of scores for each row, of products of "
            f"{layer.num_channels} channels, and its {name} is {held}: queries and keys are not split into heads",
            where=in_subject(layer.layout, sp.module),
            evidence={"length": layer.length, "dtype": sp.dtype, "heads": held, "maps": 1},
            repro=command_for(subject, "FWD235"),
        )
        return


def _number(module: nn.Module, name: str) -> int:
    """The whole number that it holds by that name; 0 without one."""
    held = vars(module).get(name)
    return held if isinstance(held, int) and not isinstance(held, bool) else 0


def planted(subject: Subject) -> Subject:
    class OneHead(nn.Module):
        """Attention of one head that says it has four."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.num_heads, self.qkv = subject.build(subject.seed), 4, nn.Linear(16, 48)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            return output + 0 * self.attend(x.shape[0], x.shape[1]).sum().to(output.dtype)

        def attend(self, rows: int, length: int) -> Tensor:
            tokens = torch.linspace(-1, 1, 16 * length).view(1, length, 16).expand(rows, -1, -1)
            q, k, v = self.qkv(tokens.to(self.qkv.weight)).view(rows, length, 3, 1, 16).permute(2, 0, 3, 1, 4)
            return (q @ k.mT / 2).softmax(-1) @ v

    return replace(subject, build=lambda _seed: OneHead(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "NAN101"))

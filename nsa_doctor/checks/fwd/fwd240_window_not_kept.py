"""FWD240 window-not-kept

Detects: a layer that holds a window of attention, and whose attention weighs every token at a length far above it:
nothing is hidden beyond the window, and another window in its place gives the same output.
Matters: the layer costs and computes full attention whatever the configuration says; weights that were trained with
the window, by another backend mostly, give other outputs here.
Fix: hand the window on to what computes the attention, or hide what is further away with a mask; raise where a
fallback cannot serve it.

Example:
    # faulty
    y = scaled_dot_product_attention(q, k, v)  # self.window_size is for flash-attn alone
    # correct
    distance = (torch.arange(S)[:, None] - torch.arange(S)).abs()
    y = scaled_dot_product_attention(q, k, v, attn_mask=distance <= self.window_size)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.unkept_windows import unkept_windows, windows_to_ask
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    held, asked = windows_to_ask(sp)
    if held and not asked:
        raise NotApplicableError("its sequences, as long as they are examined, do not exceed the windows it holds")
    for found in unkept_windows(sp, held, asked):
        window = found.held
        yield Finding(
            message=f"{window.path or subject.name} holds {window.name} = {window.value}, and at S={found.length} "
            f"its attention weighs keys up to {found.distance} tokens away: the window hides nothing",
            where=in_subject(found.place, sp.module),
            evidence={
                "length": found.length,
                "dtype": sp.dtype,
                "window": str(window.value),
                "distance": found.distance,
                "maps": found.num_maps,
            },
            repro=command_for(subject, "FWD240"),
        )
        return


def planted(subject: Subject) -> Subject:
    class Full(nn.Module):
        """Attention to all tokens before, which holds a window of four."""

        def __init__(self) -> None:
            super().__init__()
            self.qk, self.attention_window = nn.Linear(16, 32), 4

        def forward(self, tokens: Tensor) -> Tensor:
            q, k = self.qk(tokens).chunk(2, -1)
            seen = torch.ones_like(q @ k.mT).tril().bool()
            return (q @ k.mT / 4).masked_fill(~seen, float("-inf")).softmax(-1) @ tokens

    class Windowed(nn.Module):
        """The subject, and such a layer."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.layer = subject.build(subject.seed), Full()

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            tokens = torch.linspace(-1, 1, 16 * x.shape[1], device=x.device).view(1, x.shape[1], 16)
            return output + self.layer(tokens.to(self.layer.qk.weight))[..., :1].to(output.dtype)

    return replace(subject, build=lambda _seed: Windowed(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "NAN101"))

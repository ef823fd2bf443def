"""DEC109 draws-leave-the-softmax

Detects: tokens that are drawn more or less often than softmax(logits / temperature) draws them.
Matters: a temperature that is ignored, applied twice or turned over, or a cut nobody asked for, changes every sample,
and no loss shows it.
Fix: divide the newest token's logits by the temperature once, and draw from all of them unless asked for fewer.

Example:
    # faulty
    weights = logits[:, -1].softmax(-1) / temperature  # the same draws at every temperature
    # correct
    weights = (logits[:, -1] / temperature).softmax(-1)
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotComparableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.hooks.places import callable_place
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_PROMPT, _DRAWS = 3, 2048
_DEVIANCE = 25.0
_DEVIATIONS = 7.0  # standard deviations of a count; chance passes six once in 500 million


def run(subject: Subject) -> Iterator[Finding]:
    draw, sp = subject.draw, comparable_module(subject)
    assert draw is not None
    prompt = sp.input(_PROMPT)
    with torch.no_grad():
        logits = sp(prompt)[0, -1].double()
    spread = float(logits.std())
    if not 0 < spread < math.inf:
        raise NotComparableError("the logits after a prompt are all alike, and any temperature draws the same")
    for temperature in (spread, 3 * spread):  # at which some tokens are far likelier than others, and nearly all drawn
        ids = prompt.expand(_DRAWS, -1)
        drawn = ask("draw", lambda ids=ids, t=temperature: draw(sp.module, ids.clone(), t, subject.seed), sp.module)
        fault = _fault(drawn, (logits / temperature).softmax(-1).cpu())
        if fault:
            yield Finding(
                message=f"at temperature {temperature:.2g} {fault}",
                where=callable_place(draw, sp.module),
                evidence={"temperature": temperature},
                repro=command_for(subject, "DEC109"),
            )
            return


def _fault(drawn: Tensor, share: Tensor) -> str:
    """What is wrong with the last of each row, if tokens have these shares."""
    if drawn.shape != (_DRAWS, _PROMPT + 1):
        return f"a token more for {_DRAWS}x{_PROMPT} gives {'x'.join(map(str, drawn.shape))}"
    newest = drawn[:, -1].cpu()
    if not bool(((newest >= 0) & (newest < len(share))).all()):
        return f"ids from {int(newest.min())} to {int(newest.max())} are drawn, of a vocabulary of {len(share)}"
    count, expected = torch.bincount(newest, minlength=len(share)).double(), _DRAWS * share.clamp_min(1e-300)
    excess = (count - expected).abs() - _DEVIATIONS * (expected * (1 - share)).sqrt() - _DEVIATIONS
    deviance = torch.xlogy(count, count / expected) - count + expected  # Chernoff's bound: chance is below its exp(-x)
    is_wrong = ~(excess <= 0) | ~(deviance <= _DEVIANCE)
    if not bool(is_wrong.any()):
        return ""
    token = int(deviance.where(is_wrong, -1).argmax())
    return (
        f"id {token} is drawn {int(count[token])} times of {_DRAWS}, and softmax(logits / temperature) draws it "
        f"{float(expected[token]):.0f} times"
    )


def planted(subject: Subject) -> Subject:
    draw = subject.draw
    assert draw is not None

    def faulty(module: nn.Module, ids: Tensor, temperature: float, seed: int) -> Tensor:
        """Ignores the temperature."""
        return draw(module, ids, 1.0, seed)

    return replace(subject, draw=faulty)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("draw",), blocked_by=("NAN101",))

"""DEC109 draws-leave-the-softmax

Detects: tokens that are drawn more or less often than softmax(logits / temperature) draws them.
Matters: a temperature that is ignored, applied twice or turned over, or a cut nobody asked for, changes every sample,
and no loss tells.
Fix: divide the newest token's logits by the temperature once, and draw from all of them unless told otherwise.
"""

import inspect
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.check import Check
from nsa_doctor.finding import Finding
from nsa_doctor.measurement import Place
from nsa_doctor.probes.perform import ask
from nsa_doctor.probes.specimen import comparable_specimen
from nsa_doctor.repro import again
from nsa_doctor.subject import Subject

_PROMPT, _DRAWS = 3, 2048
_DEVIATIONS = 7.0  # standard deviations of a count; chance passes six once in 500 million


def run(subject: Subject) -> Iterator[Finding]:
    draw, sp = subject.draw, comparable_specimen(subject)
    assert draw is not None
    prompt = sp.input(_PROMPT)
    with torch.no_grad():
        logits = sp(prompt)[0, -1].double()
    spread = float(logits.std())
    for temperature in (spread, 3 * spread):  # at which some tokens are far likelier than others, and nearly all drawn
        ids = prompt.expand(_DRAWS, -1)
        drawn = ask("draw", lambda ids=ids, t=temperature: draw(sp.module, ids.clone(), t, subject.seed), sp.module)
        count = torch.bincount(drawn[:, -1].cpu(), minlength=len(logits)).double()
        share = (logits / temperature).softmax(-1).cpu()
        expected = _DRAWS * share
        bound = _DEVIATIONS * (expected * (1 - share)).sqrt() + _DEVIATIONS
        excess = (count - expected).abs() - bound
        if drawn.shape != (_DRAWS, _PROMPT + 1) or not bool((excess <= 0).all()):
            token = int(excess.argmax())
            yield Finding(
                message=f"at temperature {temperature:.2g} id {token} is drawn {int(count[token])} times of {_DRAWS}, "
                f"and softmax(logits / temperature) draws it {float(expected[token]):.0f} times",
                where=_place(draw),
                evidence={"temperature": temperature, "token": token},
                repro=again(subject, "DEC109"),
            )
            return


def _place(function: object) -> Place:
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return Place(file=code.co_filename, line=code.co_firstlineno, function=code.co_name) if code else Place()


def planted(subject: Subject) -> Subject:
    draw = subject.draw
    assert draw is not None

    def sick(module: nn.Module, ids: Tensor, temperature: float, seed: int) -> Tensor:
        """Ignores the temperature."""
        return draw(module, ids, 1.0, seed)

    return replace(subject, draw=sick)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("draw",), blocked_by=("NAN101",))

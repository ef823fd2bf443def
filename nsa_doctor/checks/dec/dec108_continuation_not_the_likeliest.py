"""DEC108 continuation-not-the-likeliest

Detects: greedy decoding that does not pick the argmax of the logits after its prefix, or changes
the prompt.
Matters: samples and evaluations then show a model that nobody trained, however right prefill and decoding are.
Fix: take the logits of the newest token alone, feed every token once and at its own position, and divide by no zero.

Example:
    # faulty
    token = logits[:, 0].argmax(-1)
    # correct
    token = logits[:, -1].argmax(-1)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.hooks.places import callable_place
from nsa_doctor.probes.model.built_module import BuiltModule, comparable_module
from nsa_doctor.probes.numerics.precision import finest_precision, noise_floor
from nsa_doctor.subject.contract import Subject

_PROMPTS, _NEW = (1, 19), 13


def run(subject: Subject) -> Iterator[Finding]:
    generate, sp = subject.generate, comparable_module(subject)
    assert generate is not None
    for prompt in _PROMPTS:
        ids = sp.input(prompt, 2)
        made = ask("generate", lambda ids=ids: generate(sp.module, ids.clone(), _NEW), sp.module)
        if made.shape != (2, prompt + _NEW) or not torch.equal(made[:, :prompt], ids):
            shape = "x".join(map(str, made.shape))
            yield _finding(sp, f"{_NEW} tokens after a prompt of 2x{prompt} give {shape}, or another prompt", prompt)
            return
        with torch.no_grad():
            logits = sp(made).double()[:, prompt - 1 : -1]
            floor = noise_floor(sp, made, finest_precision(sp, made).eps)[:, prompt - 1 : -1]
        taken = logits.gather(-1, made[:, prompt:, None])
        gap = (logits.amax(-1, keepdim=True) - taken).squeeze(-1)
        wrong = (~(gap <= floor)).any(0).nonzero()
        if len(wrong):
            at = int(wrong[0])
            row = int((~(gap[:, at] <= floor[:, at])).nonzero()[0])
            rank = int((logits[row, at] > taken[row, at]).sum())
            message = (
                f"new token {at} after a prompt of {prompt} is not the argmax: {rank} have a higher logit, the best by "
                f"{float(gap[row, at]):.2e}, where rounding explains {float(floor[row, at]):.2e}"
            )
            yield _finding(sp, message, prompt)
            return


def _finding(sp: BuiltModule, message: str, prompt: int) -> Finding:
    where = callable_place(sp.subject.generate, sp.module)
    return Finding(message=message, where=where, evidence={"prompt": prompt}, repro=command_for(sp.subject, "DEC108"))


def planted(subject: Subject) -> Subject:
    generate = subject.generate
    assert generate is not None

    def faulty(module: nn.Module, ids: Tensor, num_tokens: int) -> Tensor:
        """Continues the prompt as if its last token were not there."""
        shorter = ids[:, :-1] if ids.shape[1] > 1 else ids
        return torch.cat((ids, generate(module, shorter, num_tokens)[:, shorter.shape[1] :]), dim=1)

    return replace(subject, generate=faulty)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, needs=("generate",), profile="smoke", blocked_by=("FWD206", "NAN101")
)

"""What a code base computes, as numbers: `python -m tests.gallery_code.probe HOST FILE`, run where its package lies."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.adapters.load import load_subject
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from tests.gallery_code.recall import SEVERAL, VIEWS

_LENGTHS, _ROWS, _LONGEST = (1, 7, 33, 70), 2, 150
_PROMPTS = (1, 6, 35)
_NUM_STEPS = 40


def computed(subject: Subject) -> Iterator[tuple[str, Any]]:
    """Outputs, gradients, decoded outputs and losses of training, by name; what is raised, in words."""
    for mode in ("eval", "train"):
        for length in (*_LENGTHS, _LONGEST):
            yield f"{mode} {length}", _said(lambda mode=mode, length=length: _pass(subject, mode, length))
    if subject.prefill is not None and subject.step is not None:
        for prompt in _PROMPTS:
            yield f"decode {prompt}", _said(lambda prompt=prompt: _decoded(subject, prompt))
    if subject.loop is not None:
        yield "loop", _said(lambda: _trained(subject))


def _said(call: Callable[[], Any]) -> Any:
    answer = attempt(call)
    return answer.sentence if isinstance(answer, Caught) else answer


def _built(subject: Subject, mode: str) -> Any:
    torch.manual_seed(0)
    return subject.build(0).double().train(mode == "train")


def _given(subject: Subject, length: int, seed: int = 1) -> Tensor:
    chance = torch.Generator().manual_seed(seed)
    if subject.input == "tokens":
        return torch.randint(subject.width, (_ROWS, length), generator=chance)
    return torch.randn(_ROWS, length, subject.width, generator=chance, dtype=torch.float64)


def _pass(subject: Subject, mode: str, length: int) -> list[Tensor]:
    module, x = _built(subject, mode), _given(subject, length)
    torch.manual_seed(1)
    output = subject.forward(module, x)
    output = output if isinstance(output, Tensor) else output[0]
    output.square().sum().backward()
    return [output.detach(), *(each.grad for each in module.parameters() if each.grad is not None)]


@torch.no_grad()
def _decoded(subject: Subject, prompt: int) -> list[Tensor]:
    assert subject.prefill is not None
    assert subject.step is not None
    module, x = _built(subject, "eval"), _given(subject, prompt + _NUM_STEPS)
    output, cache = subject.prefill(module, x[:, :prompt])
    outputs = [output]
    for token in range(prompt, x.shape[1]):
        output, cache = subject.step(module, x[:, token : token + 1], cache)
        outputs.append(output)
    return outputs


def _trained(subject: Subject) -> list[Tensor]:
    assert subject.loop is not None
    torch.manual_seed(2)
    loop = subject.loop(_built(subject, "train"))
    batches = [[_given(subject, 48, seed=10 * step + part) for part in range(2)] for step in range(8)]
    losses = [float(loop.step(each)) for each in batches[:4]]
    kept = loop.snapshot() if loop.snapshot is not None else None
    evaluated = [float(loop.evaluate(batches[0]))] if loop.evaluate is not None else []
    losses += [float(loop.step(each)) for each in batches[4:]]
    again = []
    if loop.restore is not None:
        loop.restore(kept)
        again = [float(loop.step(batches[4]))]
    return [torch.tensor([*losses, *evaluated, *again], dtype=torch.float64)]


def main() -> int:
    """Writes what is computed in the folder's package."""
    host, file = sys.argv[1:]
    torch.set_num_threads(1)
    found = {}
    for name in SEVERAL.get((host, "adapter"), ("make",)):
        subject = load_subject(SubjectRequest(spec=f"{host}.{VIEWS['adapter']}:{name}"))
        found[name] = dict(computed(subject))
    torch.save(found, Path(file))
    return 0


if __name__ == "__main__":
    sys.exit(main())

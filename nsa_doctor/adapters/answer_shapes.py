"""Lets modules be examined whose answer is no [B, S, D]: one for each row (a class, a pooled state), or [B, S]."""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.input_discovery import is_lazy
from nsa_doctor.core.declared import Declaration
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.modes import evaluating
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.tensors.answer import floating_parts
from nsa_doctor.subject.contract import AnswerSize, Subject

_ROWS = (2, 3)
_LENGTHS = ((5, 8), (32, 48), (512, 1024))  # pairs, since the shape is to be one: short ones, or of whole blocks
_LENGTHS_OF_WIDTH = (16, 32)
_TOKENS = "S"


def with_answers_for_tokens(subject: Subject, module: nn.Module) -> Subject:
    """The subject, whose answer is [B, S, D] where the module gives none such, but one of a shape that is known."""
    known = _known_answer(subject, module)
    return subject if known is None else answering(subject, *known)


def with_width_of_output(
    subject: Subject, module: nn.Module, asking: Callable[[int], None], avoid: Collection[int]
) -> Subject:
    """The subject that knows how wide its output is, seen at a length that is not the width of its input.

    As it is where no call of that length is answered, or where it is one to `avoid`. `asking` gets the length.
    """
    length = next(each for each in _LENGTHS_OF_WIDTH if each != subject.width)
    if subject.input == "tokens" or is_lazy(module) or length in avoid:
        return subject
    asking(length)
    sp = BuiltModule(subject, module, subject.dtype)
    with preserved_state(), evaluating(module), torch.no_grad():
        output = attempt(lambda: sp(sp.input(length)))
    return subject if isinstance(output, Caught) else replace(subject, output_width=output.shape[-1])


def answering_when_seen(subject: Subject) -> Subject:
    """The subject, which is asked for that shape when an answer of it is first seen to be no [B, S, D]."""
    found: list[Subject] = []

    def forward(module: nn.Module, x: Tensor) -> Any:
        answer = subject.forward(module, x)
        if any(part.ndim == 3 and part.shape[:2] == x.shape[:2] for part in floating_parts(answer).values()):
            return answer
        if not found:
            found.append(with_answers_for_tokens(subject, module))
        return answer if found[0].answer is None else of_tokens(answer, x, *found[0].answer)

    return replace(subject, forward=forward)


def answering(subject: Subject, path: str, size: AnswerSize) -> Subject:
    """The subject, whose answer is made [B, S, D] of the tensor at that path in it.

    An answer [B, ...] that is as large whatever the length is given to each token of its row; the subject is then
    bidirectional. Of [B, S] and [B, S, ...] the further axes are one. A note says so.
    """
    note, spec = f"its answer is [{', '.join(map(str, ('B', *size)))}]", subject.spec
    if size[:1] != (_TOKENS,):
        note = f"{note}, one for each row: each token of the row is given it"
        spec = tuple(dict.fromkeys((*spec, Declaration.BIDIRECTIONAL.value)))

    def forward(module: nn.Module, x: Tensor) -> Any:
        return of_tokens(subject.forward(module, x), x, path, size)

    return replace(subject, forward=forward, spec=spec, notes=(*subject.notes, note), answer=(path, size))


def of_tokens(answer: Any, x: Tensor, path: str, size: AnswerSize) -> Any:
    """[B, S, D] of the tensor at that path; the answer itself where it is of another shape, which is a finding."""
    found = floating_parts(answer).get(path)
    if found is None or tuple(found.shape) != (len(x), *(x.shape[1] if each == _TOKENS else each for each in size)):
        return answer
    if size[:1] == (_TOKENS,):
        return found.reshape(len(x), x.shape[1], -1)
    return found.reshape(len(x), 1, -1).expand(-1, x.shape[1], -1)


def answer_of_tokens(subject: Subject, answer: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The output [B, S, D] of what the module itself answers, and the tensors beside it."""
    of = answer if subject.answer is None else of_tokens(answer, x, *subject.answer)
    return checked_answer(subject, of, x)


def _known_answer(subject: Subject, module: nn.Module) -> tuple[str, AnswerSize] | None:
    """The way to the tensor in the answer, and its shape behind the rows; None where the answer is as it should be."""
    for lengths in _LENGTHS:
        with preserved_state(), evaluating(module):
            short, long = (attempt(partial(_shapes, subject, module, *e)) for e in zip(_ROWS, lengths, strict=True))
        if isinstance(short, Caught) or isinstance(long, Caught):
            continue
        sizes = {path: _size(shape, long.get(path, ()), lengths) for path, shape in short.items()}
        known = [(path, size) for path, size in sizes.items() if size is not None]
        is_right = any(len(size) == 2 and size[0] == _TOKENS for _, size in known)
        return None if is_right or not known else known[0]
    return None


def _shapes(subject: Subject, module: nn.Module, rows: int, length: int) -> dict[str, tuple[int, ...]]:
    """Of every tensor in the answer."""
    x = BuiltModule(subject, module, subject.dtype).input(length, rows)
    with torch.no_grad():
        return {path: tuple(part.shape) for path, part in floating_parts(subject.forward(module, x)).items()}


def _size(first: tuple[int, ...], second: tuple[int, ...], lengths: tuple[int, int]) -> AnswerSize | None:
    """What follows the rows, where it is one at both lengths but for an axis of tokens, which comes first if at all."""
    if first[:1] + second[:1] != _ROWS or len(first) != len(second) or 0 in first:
        return None
    axes = list(zip(first[1:], second[1:], strict=True))
    size = tuple(_TOKENS if both == lengths else both[0] for both in axes)
    is_one = all(both == lengths or both[0] == both[1] for both in axes)
    return size if is_one and _TOKENS not in size[1:] else None

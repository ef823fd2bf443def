"""What a forward answers for tokens of which an argument of it says that some are padding."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import pad

from nsa_doctor.adapters.answer_shapes import of_tokens
from nsa_doctor.adapters.input_discovery import called
from nsa_doctor.probes.model.perform import checked_answer
from nsa_doctor.subject.contract import Subject


def padded_answer(
    subject: Subject,
    way: str | None,
    name: str,
    meant: Callable[[Tensor], Tensor],
    module: nn.Module,
    x: Tensor,
    keep: Tensor,
) -> Tensor:
    """The output for x [B, S, ...] of which `keep` [B, S] says which tokens are no padding."""
    return masked_answer(subject, module, x, way, {name: meant(keep)})


def masked_answer(
    subject: Subject,
    module: nn.Module,
    x: Tensor,
    way: str | None,
    options: Mapping[str, Tensor],
    longest: int | None = None,
) -> Tensor:
    """The output [B, S, ...] for x beside these arguments; what is cut to the `longest` row gets zeros behind it."""

    def forward(module: nn.Module, x: Tensor) -> Any:
        answer = called(module, x, way, options)
        answer = answer if subject.answer is None else of_tokens(answer, x, *subject.answer)
        return answer if longest is None else _whole(answer, longest, x.shape[1])

    masked = replace(subject, forward=forward)
    return checked_answer(masked, masked.forward(module, x), x)[0]


def _whole(answer: Any, longest: int, length: int) -> Any:
    def filled(each: Any) -> Any:
        is_cut = isinstance(each, Tensor) and each.ndim > 1 and longest < length and each.shape[1] == longest
        return pad(each, (0, 0) * (each.ndim - 2) + (0, length - longest)) if is_cut else each

    return tuple(filled(each) for each in answer) if type(answer) is tuple else filled(answer)

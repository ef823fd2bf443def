"""Finds out how a plain module masks padding by the lengths of rows that its forward takes, in tokens or as shares."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.masked_answer import masked_answer
from nsa_doctor.core.errors import attempt
from nsa_doctor.probes.attention.hiding_parts import a_part_hides
from nsa_doctor.probes.attention.padded_rows import ByLengths
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.subject.contract import Subject

OF_LENGTHS = re.compile(
    r"(x|input|src|seq|sequence|token|text|feature|audio|wav|frame|mel)s?_?(lens?|lengths?)|lens|lengths"
)
_LENGTH, _CLOSE = 12, 1e-3
_ROWS = (12, 8, 5)  # tokens of each, the longest first, as packed sequences want them
_Meaning = Callable[[Tensor], Tensor]
_MEANINGS: dict[str, _Meaning] = {
    "how many tokens each row has": lambda keep: keep.long().sum(1),
    "what share of its tokens each row has": lambda keep: keep.float().mean(1),
}


def by_lengths(
    subject: Subject, way: str | None, names: Sequence[str]
) -> tuple[Callable[[nn.Module, Tensor, Tensor], Tensor], str] | None:
    """How padding behind a row's tokens is masked by one of these parameters, and in words.

    Whole rows give what rows without lengths do, and shorter ones something else: what is the same whatever stands in
    the padding, or nothing at all there. Where padding is answered by zeros, or a part leaves it out, that tokens read
    it is for a check to say.
    """
    for counts, name, (words, meant) in product((_counts, _answers_nothing, _hides_inside), names, _MEANINGS.items()):

        def padded(module: nn.Module, x: Tensor, keep: Tensor, name: str = name, meant: _Meaning = meant) -> Tensor:
            return masked_answer(subject, module, x, way, {name: meant(keep)}, int(keep.sum(1).max()))

        if attempt(partial(counts, subject, padded)) is True:
            return ByLengths(padded), f"padding is masked by forward(x, {name}=...), {words}"
    return None


def _answers_nothing(subject: Subject, padded: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> bool:
    """Whether all that shorter rows give behind their ends is zero, and whole rows are as without lengths."""
    sp = built(subject)
    x = sp.input(min(_LENGTH, subject.max_length), len(_ROWS))
    some = torch.arange(x.shape[1], device=x.device) < torch.tensor(_ROWS, device=x.device)[:, None]
    with torch.no_grad():
        plain = sp(x).double()
        seed_everything(subject.seed)
        whole = padded(sp.module, x.clone(), torch.ones_like(some)).double()
        seed_everything(subject.seed)
        shorter = padded(sp.module, x.clone(), some).double()
    is_as_none = bool((whole - plain).abs().max() <= _CLOSE * float(plain.abs().max()))
    is_nothing = not bool(shorter[~some].any()) and bool(plain[~some].any()) and bool(shorter[some].any())
    return is_as_none and is_nothing


def _hides_inside(subject: Subject, padded: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> bool:
    """Whether a part of the module leaves out what stands behind shorter rows, and whole rows are as without lengths.

    What does the rest may read it all the same.
    """
    sp = built(subject)
    x = sp.input(min(_LENGTH, subject.max_length), len(_ROWS))
    some = torch.arange(x.shape[1], device=x.device) < torch.tensor(_ROWS, device=x.device)[:, None]

    def given(keep: Tensor) -> Tensor:
        seed_everything(subject.seed)
        return padded(sp.module, x.clone(), keep).double()

    whole = torch.ones_like(some)
    with torch.no_grad():
        plain = sp(x).double()
        due = _CLOSE * float(plain.abs().max())
        if not bool((given(whole) - plain).abs().max() <= due) or not bool((given(some) - plain).abs().max() > due):
            return False
        return a_part_hides(sp.module, partial(given, some), partial(given, whole), some)


def _counts(subject: Subject, padded: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> bool:
    sp = built(subject)
    x = sp.input(min(_LENGTH, subject.max_length), len(_ROWS))
    place = torch.arange(x.shape[1], device=x.device)
    some = place < torch.tensor(_ROWS, device=x.device)[:, None]

    def given(keep: Tensor) -> Tensor:
        seed_everything(subject.seed)
        return padded(sp.module, x.clone(), keep).double()

    with torch.no_grad():
        plain, shorter = sp(x).double(), given(some)
        due = _CLOSE * float(plain.abs().max())
        is_as_none = bool((given(torch.ones_like(some)) - plain).abs().max() <= due)
        if not is_as_none or not bool((shorter - plain).abs().max() > due):
            return False
        x[:, -1] = sp.input(x.shape[1], len(_ROWS), subject.seed + 1)[:, -1]
        return bool((given(some) - shorter)[some & (place < x.shape[1] - 1)][_ROWS[0] - 1 :].abs().max() <= due)

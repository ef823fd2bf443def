"""Finds out how a plain module masks padding: by a forward that takes a mask of tokens, or of padding."""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from nsa_doctor.adapters.answer_shapes import with_answers_for_tokens
from nsa_doctor.adapters.input_discovery import parameter_names
from nsa_doctor.adapters.length_padding import OF_LENGTHS, by_lengths
from nsa_doctor.adapters.masked_answer import masked_answer, padded_answer
from nsa_doctor.core.errors import Caught, SubjectFailedError, attempt
from nsa_doctor.core.measurement import Mode
from nsa_doctor.probes.attention.handed_masks import (
    is_kept_from_parts,
    is_left_by_parts,
    is_left_where_tokens_attend,
)
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.deliberate import is_on_purpose
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS, _CLOSE, _LOUD = 9, 3, 1e-3, -10_000
_HEADS = (2, 3, 4, 6, 8, 12, 16)
_LONG = 64
_WHOLE = 48  # whole blocks of nearly any size: what fills blocks up by itself masks that under a mask alone
_NAMES = re.compile(r"(^|_)mask$")  # attention_mask, key_padding_mask, and what has nothing to do with padding
_OF_TOKENS = re.compile(r"(attention_|key_padding_|src_key_padding_|padding_|pad_|input_)?mask")


def _in_place_of_the_causal_one(keep: Tensor) -> Tensor:
    """Which keys each token sees, [B, 1, S, S]: those before it that are no padding, and itself."""
    before = torch.ones(keep.shape[1], keep.shape[1], dtype=torch.bool, device=keep.device).tril()
    itself = torch.eye(keep.shape[1], dtype=torch.bool, device=keep.device)
    return (keep.bool()[:, None, None] & before) | itself


_MEANINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "ones for tokens": Tensor.long,
    "true for tokens": Tensor.bool,
    "true for padding": lambda keep: ~keep.bool(),  # of masks alone that are named after it
    "true for tokens, as [B, 1, 1, S]": lambda keep: keep.bool()[:, None, None],
    "true for tokens, as [B, 1, S, S] in place of the causal one": _in_place_of_the_causal_one,
}
_OF_ONE_QUERY: dict[str, Callable[[Tensor], Tensor]] = {
    "true for padding, as [B, 1, S]": lambda keep: ~keep.bool()[:, None],
    "true for padding, as [B, 1, 1, S]": lambda keep: ~keep.bool()[:, None, None],
}
_REAL = r"real|valid|present|actual|observed|non-?pad\w*"  # what is no padding
_ELSE = re.compile(r"predict|hidden|hide|drop|ignor|masked|loss|count", re.IGNORECASE)  # what else a mask may be of
_NEEDLESS = re.compile(r"not needed|does nothing|(padd\w*|behind|stands?) on the right|right[- ]padd", re.IGNORECASE)
_MODES: dict[Mode, str] = {"eval": "", "train": ", in training mode alone"}
Masked = Callable[[nn.Module, Tensor, Tensor], Tensor]


def with_padding(subject: Subject, module: nn.Module) -> Subject:
    """The subject, whose forward masks padding where a mask of no padding gives what none does and one of all does not.

    Whether such a mask marks tokens or padding is found out by that.
    """
    parameters = attempt(lambda: inspect.signature(module.forward).parameters)
    if isinstance(parameters, Caught) or subject.offers("padded") or subject.max_length < _LENGTH:
        return subject
    way = parameter_names(module, subject.input)[0]
    names = [name for name, each in parameters.items() if each.default is None and _NAMES.search(name)]
    found = _found(with_answers_for_tokens(subject, module), way, names) if names else None
    if found is None:
        counts = [name for name, each in parameters.items() if each.default is None and OF_LENGTHS.fullmatch(name)]
        found = by_lengths(with_answers_for_tokens(subject, module), way, counts) if counts else None
    return subject if found is None else replace(subject, padded=found[0], notes=(*subject.notes, found[1]))


def _found(subject: Subject, way: str | None, names: Sequence[str]) -> tuple[Masked, str] | None:
    """How padding is masked by one of these parameters, and in words."""
    if shaped := next(_shaped(subject, way, names), None):
        return shaped
    for name in names:
        meanings = {words: meant for words, meant in _MEANINGS.items() if "pad" in name or "padding" not in words}
        if "pad" in name:  # as torch's own is; one with a guard against nothing but padding is served either way
            meanings = {"true for padding": meanings["true for padding"]} | meanings
        ways = {words: (partial(padded_answer, subject, way, name, meant), meant) for words, meant in meanings.items()}
        if subject.answer is not None and name == "mask":  # it may be of what is pooled, or to be filled in
            hiding = [words for words in ways if attempt(partial(_hides_the_end, subject, ways[words][0])) is True]
            ways = {words: ways[words] for words in hiding}
            if not ways:
                continue
        for words, (padded, meant) in ways.items():
            marks = partial(_marks_padding, subject, padded, has_size=meant is Tensor.long)
            for mode, where in _MODES.items():
                if any(attempt(partial(marks, mode=mode, length=length)) is True for length in (_LENGTH, _WHOLE)):
                    return padded, f"padding is masked by forward(x, {name}=...), {words}{where}"
        for words, (padded, _) in ways.items():
            if attempt(partial(_hides, subject, padded)) is True:
                how = f"{words}, though one of no padding is not as none"
                return padded, f"padding is masked by forward(x, {name}=...), {how}"
        if _OF_TOKENS.fullmatch(name) and attempt(partial(_is_lost, subject, way, name)) is True:
            padded = partial(padded_answer, subject, way, name, Tensor.bool)
            return padded, f"forward(x, {name}=...) is taken to mask padding, true for tokens: it changes nothing"
        for words, (padded, meant) in ways.items():
            if attempt(partial(_is_for_one_row, subject, padded, way, name, has_size=meant is Tensor.long)) is True:
                return (
                    padded,
                    f"padding is masked by forward(x, {name}=...), {words}: of one row, and of several it raises",
                )
    return next(_documented(subject, way, names), None) or next(_of_one_query(subject, way, names), None)


def _of_one_query(subject: Subject, way: str | None, names: Sequence[str]) -> Iterator[tuple[Masked, str]]:
    """Masks that are named after padding and served with an axis for queries, or for heads and queries, alone.

    Another may be one of queries and keys, which such a shape is broadcast to.
    """
    sp = built(subject)
    x = _some_rows(sp)
    ones = x.new_ones(x.shape[:2], dtype=torch.long)
    for name in (name for name in names if "pad" in name and _OF_TOKENS.fullmatch(name)):
        plain = partial(padded_answer, subject, way, name, _MEANINGS["true for padding"])
        if not _is_accident(sp, attempt(partial(plain, sp.module, x.clone(), ones))):
            continue
        for words, meant in _OF_ONE_QUERY.items():
            padded = partial(padded_answer, subject, way, name, meant)
            if attempt(partial(_hides, subject, padded)) is True:
                is_plain = attempt(partial(_is_plain_without_padding, sp, padded)) is True
                how = words if is_plain else f"{words}, though one of no padding is not as none"
                yield padded, f"padding is masked by forward(x, {name}=...), {how}"


def _documented(subject: Subject, way: str | None, names: Sequence[str]) -> Iterator[tuple[Masked, str]]:
    """Masks of which the docstring says what is true in them, where that does nothing for rows without padding.

    What they hide may show all the same: that is for a check to say.
    """
    sp, texts = built(subject), _docstrings(subject)
    for name in filter(_OF_TOKENS.fullmatch, names):
        said = re.compile(
            rf"\b{name}\b[^.;]{{0,40}}\b(true|ones?|1)\b[^.;]{{0,24}}?\b({_REAL}|pad\w*)\b[^.;]{{0,40}}", re.IGNORECASE
        )
        found = next(filter(None, map(said.search, texts)), None)
        if found is None or _ELSE.search(found[0]) or any(map(_NEEDLESS.search, texts)):
            continue
        words = "true for padding" if found[2].lower().startswith("pad") else "true for tokens"
        padded = partial(padded_answer, subject, way, name, _MEANINGS[words])
        if attempt(partial(_is_plain_without_padding, sp, padded)) is True:
            yield padded, f"padding is masked by forward(x, {name}=...), {words}, as its docstring says"


def _shaped(subject: Subject, way: str | None, names: Sequence[str]) -> Iterator[tuple[Masked, str]]:
    """Masks of tokens whose shape [B, S] the docstring gives, where none of that shape is served though rows are."""
    texts = _docstrings(subject)
    for name in filter(_OF_TOKENS.fullmatch, names):
        said = rf"\b{name}\s*:[^.;\[(]{{0,40}}[\[(]\s*b\w*\s*,\s*(s|l|t|n|seq\w*|len\w*|num_\w+|time\w*)\s*[\])]"
        if any(re.search(said, text, re.IGNORECASE) for text in texts):
            sp = built(subject)
            x = _some_rows(sp)
            ones = x.new_ones(x.shape[:2], dtype=torch.long)
            kinds = (Tensor.bool, Tensor.long, Tensor.float)
            ways = [partial(padded_answer, subject, way, name, kind) for kind in kinds]
            refused = [attempt(partial(padded, sp.module, x.clone(), ones)) for padded in ways]
            if all(map(partial(_is_accident, sp), refused)) and not isinstance(attempt(partial(sp, x)), Caught):
                how = "true for tokens, of the shape that its docstring gives"
                yield ways[0], f"padding is masked by forward(x, {name}=...), {how}"


def _is_accident(sp: BuiltModule, answer: object) -> bool:
    if not isinstance(answer, Caught):
        return False
    return not is_on_purpose(SubjectFailedError("forward", answer, sp.module), sp.subject.packages)


def _docstrings(subject: Subject) -> list[str]:
    """Those of the module's class and of its forward."""
    module = built(subject).module
    return [inspect.getdoc(type(module)) or "", inspect.getdoc(module.forward) or ""]


def _is_plain_without_padding(sp: BuiltModule, padded: Masked) -> bool:
    x = _some_rows(sp)
    ones = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
    with torch.no_grad():
        plain, given = sp(x).double(), padded(sp.module, x.clone(), ones).double()
    return bool((plain - given).abs().max() <= _CLOSE * float(plain.abs().max()))


def _is_for_one_row(subject: Subject, padded: Masked, way: str | None, name: str, *, has_size: bool) -> bool:
    """Whether a mask [1, S] is served, and nothing that several rows may have, though rows without one are.

    One for all rows, or [S, S] for each head, is what several may have; a refusal on purpose says that none may.
    """
    sp = built(subject)
    x = _some_rows(sp)
    rows, length = x.shape[:2]
    forms = [(), (length,), (rows, length), (rows, 1, length), (rows, 1, 1), (1, 1, 1)]
    forms += [(rows * heads, length) for heads in _HEADS]
    with torch.no_grad():
        ones = x.new_ones(x.shape[:2], dtype=torch.long)
        refused = attempt(lambda: padded(sp.module, x, ones))
        if not isinstance(refused, Caught):
            return False
        if is_on_purpose(SubjectFailedError("forward", refused, sp.module), subject.packages):
            return False
        for form in forms:
            mask = torch.ones((*form, length), dtype=torch.bool, device=x.device)
            served = partial(padded_answer, subject, way, name, lambda _keep, mask=mask: mask)
            if not isinstance(attempt(partial(served, sp.module, x.clone(), x)), Caught):
                return False
    marks = partial(_marks_padding, subject, padded, has_size=has_size, mode="eval", length=_LENGTH, rows=1)
    return marks() and not isinstance(attempt(lambda: sp(x)), Caught)


def _hides(subject: Subject, padded: Masked) -> bool:
    """Whether what comes after hidden tokens does not depend on them, as it does without a mask."""
    sp = built(subject)
    if not _serves_as_much(sp, padded):
        return False
    x, other = _some_rows(sp), _some_rows(replace(sp, subject=replace(subject, seed=subject.seed + 1)))
    half = x.shape[1] // 2
    changed = torch.cat((other[:, :half], x[:, half:]), 1)
    keep = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
    keep[:, :half] = 0

    def is_like(call: Callable[[Tensor], Tensor]) -> bool:
        first, second = (call(each.clone())[:, half:].double() for each in (x, changed))
        return bool((first - second).abs().max() <= _CLOSE**2 * float(first.abs().max()))

    with torch.no_grad():
        return is_like(lambda given: padded(sp.module, given, keep)) and not is_like(sp)


def _hides_the_end(subject: Subject, padded: Masked) -> bool:
    """Whether hidden tokens behind a row leave it the answer that it has alone."""
    sp = built(subject)
    x = _some_rows(sp)
    kept = x.shape[1] - x.shape[1] // 3
    keep = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
    keep[:, kept:] = 0
    with torch.no_grad():
        alone, hidden = sp(x[:, :kept].clone()).double(), padded(sp.module, x.clone(), keep)[:, :kept].double()
    return bool((alone - hidden).abs().max() <= _CLOSE**2 * float(alone.abs().max()))


def _is_lost(subject: Subject, way: str | None, name: str) -> bool:
    """Whether a mask of tokens changes nothing, whatever it hides, and a part of the module wants it or leaves it."""
    sp = built(subject)
    x = _some_rows(sp)
    every = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    first = every.clone()
    first[:, 1:] = False

    def given(mask: Tensor) -> Tensor:
        return masked_answer(subject, sp.module, x.clone(), way, {name: mask})

    with torch.no_grad():
        plain = sp(x)
        if not all(torch.equal(given(mask), plain) for mask in (every, first, ~first)):
            return False
        length, call = x.shape[1], partial(given, first)
        if is_kept_from_parts(sp.module, name):
            return True
        if not _is_read_by_all(sp, x):
            return False
        return is_left_by_parts(sp.module, call, length) or is_left_where_tokens_attend(sp.module, name, call, length)


def _is_read_by_all(sp: BuiltModule, x: Tensor) -> bool:
    """Whether the last token changes the answer for the first: padding behind a row is read where nothing hides it."""
    other = x.clone()
    other[:, -1] = sp.input(x.shape[1], len(x), sp.subject.seed + 1)[:, -1]
    return not torch.equal(sp(x)[:, 0], sp(other)[:, 0])


def _serves_as_much(sp: BuiltModule, padded: Masked) -> bool:
    """Whether the forward takes in what the subject does: an adapter's call may cut it into pieces."""
    x = sp.input(min(_LONG, sp.subject.max_length))
    ones = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
    with torch.no_grad():
        return not isinstance(attempt(lambda: padded(sp.module, x, ones)), Caught) or isinstance(
            attempt(lambda: sp(x)), Caught
        )


def _some_rows(sp: BuiltModule, length: int = _LENGTH, rows: int = _ROWS) -> Tensor:
    """Rows of so many tokens, or of more where they are not served."""
    x = sp.input(min(length, sp.subject.max_length), rows)
    is_refused = isinstance(attempt(lambda: sp(x)), Caught)
    return sp.input(min(_LONG, sp.subject.max_length), rows) if is_refused else x


def _marks_padding(
    subject: Subject, padded: Masked, *, has_size: bool, mode: Mode, length: int, rows: int = _ROWS
) -> bool:
    """Whether a mask of ones changes nothing, others do, and it is none that is added to scores.

    What is added changes nothing where it is zero everywhere, and its size counts, if it `has_size`, and not only
    whether it is zero.
    """
    sp = built(subject, mode=mode)
    if not _serves_as_much(sp, padded):
        return False
    x = _some_rows(sp, length, rows)
    ones = torch.ones(x.shape[:2], dtype=torch.long, device=x.device)
    one = ones * 0
    one[:, 0] = 1

    def like(first: Tensor | Caught, second: Tensor) -> bool:
        due = _CLOSE * float(plain.abs().max())
        return isinstance(first, Tensor) and bool((first - second).abs().max() <= due)

    def given(keep: Tensor) -> Tensor | Caught:
        seed_everything(subject.seed)
        return attempt(lambda: padded(sp.module, x.clone(), keep).double())

    with torch.no_grad():
        plain = sp(x).double()
        if not like(given(ones), plain):
            return False
        if not like(given(ones * 0), plain):
            return True
        alone, loud = given(one), given(one * _LOUD)
        is_like = isinstance(alone, Tensor) and not like(alone, plain) and like(loud, alone)
        return is_like and has_size  # of truths the size says nothing

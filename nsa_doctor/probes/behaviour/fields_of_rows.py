"""Objects of the subject's own that it decodes with, and what their methods make of each field where rows are chosen.

A field belongs to the rows where it comes out in another order when the rows of the input do, and it is alive where
another last token changes it: what depends on a prompt alone may be one for all beams.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.calls import calls_seen_by
from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.attention.decoding import decode
from nsa_doctor.probes.hooks.row_choosers import (
    Chooser,
    choosers_of,
    is_said_to_be_shared,
    is_tensor_of,
    set_by_callers,
)
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.model.own_functions import modules_within_reach
from nsa_doctor.probes.model.state_fields import fields_of
from nsa_doctor.subject.contract import Subject

_OWN = 3  # the rank of the subject's own code
_ROWS, _LAST, _LENGTH = 29, 8, 4
_MOST_OBJECTS = 512
_CLOSE = {2: 0.02, 4: 1e-4, 8: 1e-7}  # by bytes of a value, of the largest
_OF_A_PROMPT = re.compile(r"enc|cross|memory|source|src|context|cond|prompt|prefix|image|static|shared|slot", re.I)
_OF_A_STEP = re.compile(r"logit|log_?p|prob|score|last|next|prev|output|^out$|^y$", re.I)  # replaced by each step

Kinds = Mapping[type, list[Chooser]]


@dataclass(frozen=True)
class LeftField:
    """A field that a method leaves as it is while it chooses rows of others, and where."""

    kind: str
    method: str
    field: str
    others: tuple[str, ...]
    place: Place


def kinds_with_choosers(sp: BuiltModule) -> dict[type, list[Chooser]]:
    """Classes within the subject's reach that have such methods."""
    frames = FrameFilter(sp.subject.packages)
    files = list(modules_within_reach(sp, frames, with_packages=True))
    held = [value for file in files for value in vars(file).copy().values() if isinstance(value, type)]
    kinds = dict.fromkeys((*held, *(type(part) for part in sp.module.modules())))
    found = {kind: attempt(lambda kind=kind: choosers_of(kind, frames)) for kind in kinds if not _is_other(kind)}
    return {kind: choosers for kind, choosers in found.items() if isinstance(choosers, list) and choosers}


def left_fields(subject: Subject, kinds: Kinds) -> tuple[list[LeftField], int]:
    """What is left as it is, that of the inner objects first; and how many kinds of objects were asked."""
    x = _input(built(subject))
    turned, last = x.flip(0), torch.cat((x[:, :-1], x[:, -1:].roll(_ROWS // 2, 0)), 1)
    runs = attempt(lambda: [_objects(subject, kinds, given) for given in (x, turned, last)])
    if isinstance(runs, Caught):
        return [], 0
    first, second, third = runs
    found: list[LeftField] = []
    faulty: set[type] = set()
    num_asked = 0
    common = [kind for kind in first if kind in second and kind in third]
    for kind in sorted(common, key=lambda kind: _depth(first[kind])):
        values = [_tensors(each[kind]) for each in (first, second, third)]
        own = [path for path in values[0] if _is_of_rows(path, *values[:2])]
        if len(own) < 2:
            continue
        num_asked += 1
        alive = [path for path in own if path in values[2] and not _same(values[0][path], values[2][path])]
        for chooser in kinds[kind]:
            lefts = attempt(lambda k=kind, c=chooser, o=own, a=alive: _left(first[k], k, c, o, a, faulty))
            for left in [] if isinstance(lefts, Caught) else lefts:
                if not _is_meant(subject, kind, chooser, left.field):
                    found.append(left)
                    faulty.add(kind)
    return found, num_asked


def _is_other(kind: type) -> bool:
    return issubclass(kind, (Tensor, BaseException, str, int)) or kind.__module__.partition(".")[0] in (
        "torch",
        "builtins",
    )


def _input(sp: BuiltModule) -> Tensor:
    """Rows that end with one id each, so that what one of them brings about is seen in its row."""
    length = min(_LENGTH, sp.subject.max_length)
    x = sp.input(length, _ROWS)
    if sp.subject.input == "tokens":
        width = sp.subject.width
        ends = [*range(_ROWS - _LAST), *range(width - _LAST, width)]
        x[:, -1] = torch.tensor(ends, device=x.device) % width
    return x


def _objects(subject: Subject, kinds: Kinds, x: Tensor) -> dict[type, Any]:
    """The last object of each kind that is seen while the rows are decoded, or else read in one pass."""
    sp = built(subject)
    seen: list[Any] = []
    with _watched(FrameFilter(subject.packages), kinds, seen), torch.no_grad():
        decoded = None
        if subject.offers("prefill") and subject.offers("step"):
            decoded = attempt(lambda: decode(sp, x, [x.shape[1] - 1, 1]))
        if decoded is None or isinstance(decoded, Caught):
            subject.forward(sp.module, x.clone())
    seen += [part for part in sp.module.modules() if type(part) in kinds]
    last: dict[type, Any] = {}
    for each in seen:
        if sum(is_tensor_of(value, len(x)) for value in _tensors(each).values()) >= 2:
            last[type(each)] = each
    return last


@contextmanager
def _watched(frames: FrameFilter, kinds: Kinds, seen: list[Any]) -> Iterator[None]:
    """Collects objects of these kinds that the subject's own functions hold or return, each once."""
    own: dict[CodeType, bool] = {}
    known: set[int] = set()

    def note(value: Any) -> None:
        if type(value) in kinds and not isinstance(value, nn.Module) and id(value) not in known:
            known.add(id(value))
            seen.append(value)
            if len(seen) > _MOST_OBJECTS:
                del seen[0]

    def look(frame: FrameType, event: str, returned: Any) -> None:
        if event != "return":
            return
        code = frame.f_code
        if code not in own:
            own[code] = frames.rank_of(code) == _OWN
        if own[code]:
            for value in frame.f_locals.values():
                note(value)
            for value in returned if isinstance(returned, tuple) else (returned,):
                note(value)

    with calls_seen_by(look):
        yield


def _tensors(value: Any) -> dict[str, Tensor]:
    held = fields_of(value, "").values()
    return {field.path: field.value for field in held if isinstance(field.value, Tensor)}


def _depth(value: Any) -> int:
    """How far down its tensors lie: what another object holds comes before it."""
    return max((path.count(".") + path.count("[") for path in _tensors(value)), default=0)


def _is_of_rows(path: str, values: Mapping[str, Tensor], turned: Mapping[str, Tensor]) -> bool:
    value, other = values[path], turned.get(path)
    if other is None or not is_tensor_of(value, _ROWS) or value.shape != other.shape:
        return False
    return _same(value.flip(0), other) and not _same(value, value[_index(value)])


def _index(value: Tensor) -> Tensor:
    index = (torch.arange(_ROWS, device=value.device) + _ROWS // 2) % _ROWS
    index[1] = index[0]  # a row that is chosen twice
    return index


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    size = float(one.abs().nan_to_num(0.0, 0.0, 0.0).max()) if one.numel() else 0.0
    allowed = _CLOSE.get(one.element_size(), _CLOSE[2]) * size
    return bool(torch.allclose(one, other, rtol=0.0, atol=allowed, equal_nan=True))


def _left(
    held: Any, kind: type, chooser: Chooser, own: list[str], alive: list[str], faulty: set[type]
) -> list[LeftField]:
    """Fields of the rows that are as they were behind the method, where it chooses others."""
    changed = copy.deepcopy(held)
    was = _tensors(held)
    given = _index(next(iter(was.values())))
    with torch.no_grad():
        answer = getattr(changed, chooser.name)(given)
    now = _tensors(answer if type(answer) is kind else changed)
    chosen = [path for path in own if path in now and _same(now[path], was[path][given])]
    left = [path for path in alive if path in now and torch.equal(now[path], was[path])]
    if not chosen:
        return []
    inner = [path for path in left if any(_lies_in(held, path, each) for each in faulty)]
    fields: dict[str, str] = {}
    for path in left:
        if path not in inner:
            fields.setdefault(_first_name(path), path)
    return [
        LeftField(kind.__name__, chooser.name, name, tuple(each.lstrip(".") for each in chosen), chooser.place_of(name))
        for name, _ in fields.items()
    ]


def _first_name(path: str) -> str:
    """The attribute of the object itself that leads there."""
    return re.split(r"[.\[]", path.lstrip("."))[0]


def _lies_in(held: Any, path: str, kind: type) -> bool:
    """Whether an object of that kind holds it on the way."""
    return any(
        isinstance(each, kind) and each is not held
        for each in (attempt(lambda n=n: _at(held, path, n)) for n in range(1, path.count(".") + path.count("[")))
    )


def _at(held: Any, path: str, depth: int) -> Any:
    for part in re.findall(r"\.\w+|\[[^\]]*\]", path)[:depth]:
        inside = part.strip(".[]'")
        held = getattr(held, inside) if part[0] == "." else held[int(inside) if inside.isdigit() else inside]
    return held


def _is_meant(subject: Subject, kind: type, chooser: Chooser, name: str) -> bool:
    """Whether names or comments say that it needs no choice, or callers see to it."""
    if _OF_A_PROMPT.search(name) or _OF_A_STEP.search(name) or is_said_to_be_shared(kind, chooser, name):
        return True
    files = list(modules_within_reach(built(subject), FrameFilter(subject.packages), with_packages=True))
    return set_by_callers(files, chooser, name)

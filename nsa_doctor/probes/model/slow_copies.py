"""Copies of a part that are to follow it slowly, and how far the module's own method moves them at a call."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter, Line
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.hooks.phase import ask, unobserved
from nsa_doctor.probes.internal import memory_of, part_at
from nsa_doctor.probes.model.copies import copied_module
from nsa_doctor.probes.model.idle_initialisers import line_of, needed_arguments
from nsa_doctor.probes.model.start_writes import StartWrites
from nsa_doctor.probes.model.state import preserved_state, seed_everything
from nsa_doctor.subject.contract import Subject

_MOVES = re.compile(r"update|step|move|blend|follow|track|sync|polyak|ema|average")
_SLOW = re.compile(r"ema|momentum|slow|target|teacher|polyak|averag|moving|shadow|soft|key_encoder|critic")
_CALLS = 100  # a decay that warms up is there by then
_AT_ONCE = (0.5, 1 - 1e-4)  # shares of the way; all of it is a copy, and meant
_OWN = 3  # the rank of the subject's own code


@dataclass(frozen=True)
class SlowCopy:
    """A copy, what it follows, the method that moves it, and by what share of the way in a call."""

    place: Place
    method: str
    copy: str
    original: str
    share: float


def hasty_copies(subject: Subject) -> Iterator[SlowCopy]:
    """Those that go more than half of the way at each call, and not all of it."""
    seed_everything(subject.seed)
    root = ask("build", lambda: subject.build(subject.seed), None)
    frames = FrameFilter(subject.packages)
    for path, holder in root.named_modules():
        for copy, original in _pairs(holder):
            for name in _methods(type(holder), copy, frames):
                with unobserved(), preserved_state(), torch.no_grad():
                    share = attempt(partial(_share, root, path, copy, original, name))
                if not isinstance(share, Caught) and _AT_ONCE[0] < share < _AT_ONCE[1]:
                    place = _place(root, path, copy, name, frames)
                    yield SlowCopy(place, name, _joined(path, copy), _joined(path, original), share)


def _pairs(holder: nn.Module) -> Iterator[tuple[str, str]]:
    """A part that is not trained, and one of its class and sizes that is."""
    parts = dict(holder.named_children())
    for copy, slow in parts.items():
        for original, fast in parts.items():
            sizes = [{name: each.shape for name, each in part.named_parameters()} for part in (slow, fast)]
            trained = [[each.requires_grad for each in part.parameters()] for part in (slow, fast)]
            is_copy = type(slow) is type(fast) and sizes[0] == sizes[1] and bool(sizes[0])
            if is_copy and not any(trained[0]) and any(trained[1]):
                yield copy, original


def _methods(kind: type, copy: str, frames: FrameFilter) -> Iterator[str]:
    """The methods of its own that by the names around them move what is slow, and need no argument."""
    for name in dir(kind):
        words = (name.lower(), copy.lower(), kind.__name__.lower())
        if not name.startswith("__") and _MOVES.search(words[0]) and any(map(_SLOW.search, words)):
            function = attempt(lambda name=name: inspect.unwrap(getattr(kind, name)))
            code = getattr(function, "__code__", None)
            is_own = code is not None and frames.rank_of(code) == _OWN
            if is_own and attempt(lambda name=name: needed_arguments(kind, name)) == []:
                yield name


def _share(root: nn.Module, path: str, copy: str, original: str, method: str) -> float:
    """The share of the way to what it follows by which the last of many calls moves the copy."""
    holder = part_at(copied_module(root), path)
    slow, fast = (list(dict(holder.named_children())[name].parameters()) for name in (copy, original))
    generator = torch.Generator().manual_seed(0)
    share = 0.0
    for _ in range(_CALLS):
        for each in fast:
            each.add_(torch.randn(each.shape, generator=generator).to(each))
        before, wanted = _flat(slow), _flat(fast)
        getattr(holder, method)()
        way = wanted - before
        share = float((_flat(slow) - before) @ way / (way @ way))
    return share


def _place(root: nn.Module, path: str, copy: str, method: str, frames: FrameFilter) -> Place:
    """The line that writes into the copy, or where the method begins."""
    holder = part_at(copied_module(root), path)
    part = dict(holder.named_children())[copy]
    held = {memory_of(each) for each in part.parameters()}
    watch = StartWrites(frames)
    with unobserved(), preserved_state(), torch.no_grad(), watch:
        attempt(getattr(holder, method))
    code = inspect.unwrap(getattr(type(holder), method)).__code__
    begins = Line(file=code.co_filename, line=line_of(code), function=method)
    line = next((line for line, memories in watch.lines.items() if memories & held), begins)
    kind = type(holder).__name__
    return Place(module=path, module_class=kind, file=line.file, line=line.line, function=line.function)


def _flat(parameters: list[nn.Parameter]) -> Tensor:
    return torch.cat([each.detach().double().flatten() for each in parameters])


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

"""What training passes move in a module beside its weights, and how to have it back: running statistics, say."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import NoneType
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nsa_doctor.probes.internal import hooks_of, part_at, untraced
from nsa_doctor.probes.model.module_state import ModuleState

GoesOn = Literal["", "counts", "everything"]

_BEFORE_TRAINING_CALL: "WeakKeyDictionary[nn.Module, tuple[RunningState, ModuleState]]" = WeakKeyDictionary()


class RunningState:
    """The values of a module's buffers and frozen parameters as they are now, and numbers and words beside them."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._values = {name: value.detach().clone() for name, value in _running(module)}
        self._words = {path: _words_of(part) for path, part in module.named_modules()}

    def has_moved(self, *, but_counts: bool = False) -> bool:
        """Whether a value is another one now; `but_counts` passes over whole numbers that are whole still."""
        held = ((self._values[name], value) for name, value in _running(self._module) if name in self._values)
        moved = ((before, value) for before, value in held if not _is_same(before, value))
        return any(not but_counts or not _is_whole(before) or not _is_whole(value) for before, value in moved)

    def give(self, module: nn.Module) -> None:
        """Have another module of the same build hold these values, as far as they are shaped alike."""
        with torch.no_grad(), suppress(RuntimeError):
            for name, value in _running(module):
                if name in self._values and self._values[name].shape == value.shape:
                    value.copy_(self._values[name])

    def put_back(self, goes_on: GoesOn = "") -> None:
        """Have the values back that still have their shape, but for what `goes_on`.

        Of a part whose values are put back, numbers and words are too, for they may say what its buffers hold: unless
        what counts goes on.
        """
        if goes_on == "everything":
            return
        now = dict(_running(self._module))
        for name, before in self._values.items():
            value = now.get(name)
            if value is None or value.shape != before.shape or _is_same(before, value):
                continue
            if goes_on == "counts" and _is_whole(before) and _is_whole(value):
                continue
            with torch.no_grad(), suppress(RuntimeError):  # one that shares memory with itself stays
                value.copy_(before)
                path = name.rpartition(".")[0]
                if not goes_on:
                    _put_back(part_at(self._module, path), self._words.get(path, {}))


@contextmanager
def kept(module: nn.Module | None, goes_on: GoesOn = "") -> Iterator[None]:
    """Have a module's running state at the end of this region as at its beginning, but for what `goes_on`."""
    before = None if module is None or goes_on == "everything" else RunningState(module)
    try:
        yield
    finally:
        if before is not None:
            before.put_back(goes_on)


def rewind(module: nn.Module) -> None:
    """Put all back where the last call in training mode moved running state, and remember what the next may move.

    Counts alone go on: what they do is looked for. It is done before a call, not after one: a backward pass may still
    need what the last call left. Of a module that has no running state, all that it holds need not be taken down.
    """
    before = _BEFORE_TRAINING_CALL.pop(module, None)
    with untraced():
        if before is not None and before[0].has_moved(but_counts=True):
            with _mode_and_hooks_kept(module):  # which changed between the calls, not by them
                before[1].restore()
        if module.training and next(_running(module), None) is not None:
            _BEFORE_TRAINING_CALL[module] = RunningState(module), ModuleState(module)


@contextmanager
def _mode_and_hooks_kept(module: nn.Module) -> Iterator[None]:
    """Leave the mode of every part, and the hooks on it, as they are now."""
    now = [(part, part.training, [(held, {**held}) for held in hooks_of(part)]) for part in module.modules()]
    try:
        yield
    finally:
        for part, training, hooks in now:
            part.training = training
            for held, items in hooks:
                held.clear()
                held.update(items)


def _words_of(part: nn.Module) -> dict[str, Any]:
    """The plain values among a module's own attributes, its mode apart."""
    plain = (bool, int, float, str, tuple, NoneType)
    return {name: value for name, value in vars(part).items() if type(value) in plain and name != "training"}


def _put_back(part: nn.Module, words: Mapping[str, Any]) -> None:
    for name in _words_of(part).keys() - words.keys():
        vars(part).pop(name)
    vars(part).update(words)


def _is_same(before: Tensor, value: Tensor) -> bool:
    return before.dtype == value.dtype and torch.equal(before, value)


def _is_whole(value: Tensor) -> bool:
    return not value.is_complex() and bool((value == value.double().round()).all())


def _running(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    held = [*module.named_buffers(), *(each for each in module.named_parameters() if not each[1].requires_grad)]
    for name, value in held:
        if value.layout == torch.strided and not is_lazy(value):
            yield name, value

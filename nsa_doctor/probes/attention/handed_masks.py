"""Whether a mask that a forward takes is meant to come to a part of the module, which reads it."""

import inspect
import re
from collections.abc import Callable
from types import CodeType

import torch
from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.probes.hooks.receivers import Receiver, receivers

_FOR_SHOW = re.compile(r"unused|ignor|not (?:\w+ )?(?:used|supported)|no effect", re.IGNORECASE)


def is_wanted_within(
    module: nn.Module, packages: tuple[str, ...], call: Callable[[Tensor], Tensor], mask: Tensor, name: str
) -> bool:
    """Whether the forward of a part of the module is handed the mask and reads it, in `call(mask)`.

    Or the module's own never reads it, and that of a part takes one of that name and is given none. What the source
    says to be unused is not wanted.
    """
    own, source = _code(type(module)), attempt(lambda: inspect.getsource(type(module).forward))
    if own is None or isinstance(source, Caught) or _FOR_SHOW.search(source):
        return False
    forwards = {code for part in module.modules() if part is not module and (code := _code(type(part))) is not None}
    if not Receiver(own, name).reads:
        return any(_takes(code, name) and Receiver(code, name).reads for code in forwards)
    with receivers(FrameFilter(packages), lambda value: value is mask) as found, torch.no_grad():
        call(mask)
    return any(each.reads and each.code in forwards - {own} for each in found)


def _code(kind: type[nn.Module]) -> CodeType | None:
    """The code of its forward; None for one of torch's."""
    forward = inspect.unwrap(kind.forward)
    return None if kind.__module__.startswith("torch.") else getattr(forward, "__code__", None)


def _takes(code: CodeType, name: str) -> bool:
    return name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

"""Whether a mask that a forward takes is kept from the parts of the module that want one, or left by them."""

import inspect
import re
from collections.abc import Callable
from types import CodeType
from typing import Any

from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.hooks.receivers import Receiver

_FOR_SHOW = re.compile(
    r"unused|ignor|not (?:\w+ )?(?:used|supported|needed)|no effect|compat|does nothing|\bdel \w*mask", re.IGNORECASE
)

_MASK = re.compile(r"(^|_)mask$")
_ATTENDS = re.compile(r"scaled_dot_product_attention|softmax")


def is_kept_from_parts(module: nn.Module, name: str) -> bool:
    """Whether its forward never reads that argument, and that of a part takes one of the name and reads it.

    What the source says to be unused is not wanted.
    """
    own, source = _code(type(module)), attempt(lambda: inspect.getsource(type(module).forward))
    if own is None or isinstance(source, Caught) or _FOR_SHOW.search(source) or Receiver(own, name).reads:
        return False
    forwards = {code for part in module.modules() if part is not module and (code := _code(type(part))) is not None}
    return any(_takes(code, name) and Receiver(code, name).reads for code in forwards)


def is_left_by_parts(module: nn.Module, call: Callable[[], object]) -> bool:
    """Whether the call hands a part that attends a tensor, by the name of a mask, that its forward never reads.

    What the source says to be unused is not wanted.
    """
    left: list[str] = []

    def see(part: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        code, source = _code(type(part)), attempt(lambda: inspect.getsource(type(part).forward))
        bound = attempt(lambda: inspect.signature(part.forward).bind(*given, **named).arguments)
        if code is None or isinstance(source, Caught) or isinstance(bound, Caught) or _FOR_SHOW.search(source):
            return
        masks = [name for name, value in bound.items() if _MASK.search(name) and isinstance(value, Tensor)]
        if _ATTENDS.search(source):
            left.extend(name for name in masks if not Receiver(code, name).reads)

    handles = [part.register_forward_pre_hook(see, with_kwargs=True) for part in module.modules() if part is not module]
    try:
        attempt(call)
    finally:
        for handle in handles:
            handle.remove()
    return bool(left)


def _code(kind: type[nn.Module]) -> CodeType | None:
    """The code of its forward; None for one of torch's."""
    forward = inspect.unwrap(kind.forward)
    return None if kind.__module__.startswith("torch.") else getattr(forward, "__code__", None)


def _takes(code: CodeType, name: str) -> bool:
    return name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

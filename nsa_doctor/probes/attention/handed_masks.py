"""Whether a mask that a forward takes is kept from the parts of the module that want one."""

import inspect
import re
from types import CodeType

from torch import nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.hooks.receivers import Receiver

_FOR_SHOW = re.compile(r"unused|ignor|not (?:\w+ )?(?:used|supported)|no effect", re.IGNORECASE)


def is_kept_from_parts(module: nn.Module, name: str) -> bool:
    """Whether its forward never reads that argument, and that of a part takes one of the name and reads it.

    What the source says to be unused is not wanted.
    """
    own, source = _code(type(module)), attempt(lambda: inspect.getsource(type(module).forward))
    if own is None or isinstance(source, Caught) or _FOR_SHOW.search(source) or Receiver(own, name).reads:
        return False
    forwards = {code for part in module.modules() if part is not module and (code := _code(type(part))) is not None}
    return any(_takes(code, name) and Receiver(code, name).reads for code in forwards)


def _code(kind: type[nn.Module]) -> CodeType | None:
    """The code of its forward; None for one of torch's."""
    forward = inspect.unwrap(kind.forward)
    return None if kind.__module__.startswith("torch.") else getattr(forward, "__code__", None)


def _takes(code: CodeType, name: str) -> bool:
    return name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

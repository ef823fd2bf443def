"""Whether a mask that a forward takes is kept from the parts of the module that want one, or left by them."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor, nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.attention.attending_parts import attending_parts
from nsa_doctor.probes.hooks.converted_alone import converted_alone
from nsa_doctor.probes.hooks.receivers import Receiver
from nsa_doctor.probes.hooks.same_interface import is_used_in_its_place

_FOR_SHOW = re.compile(
    r"unused|ignor|not (?:\w+ )?(?:used|supported|needed)|no effect|compat|does nothing|\bdel \w*mask", re.IGNORECASE
)

_MASK = re.compile(r"(^|_)mask$")
_ATTENDS = re.compile(r"scaled_dot_product_attention|softmax")


def is_kept_from_parts(module: nn.Module, name: str) -> bool:
    """Whether its forward makes nothing of that argument, and that of a part takes one of the name and reads it.

    What the source says to be unused is not wanted.
    """
    if not _leaves_alone(type(module), name):
        return False
    forwards = {code for part in module.modules() if part is not module and (code := _code(type(part))) is not None}
    return any(_takes(code, name) and Receiver(code, name).reads for code in forwards)


def is_left_where_tokens_attend(module: nn.Module, name: str, call: Callable[[], object], length: int) -> bool:
    """Whether its forward makes nothing of that argument, and attends: none of its parts takes a mask.

    `call` is one with so many tokens. What the source says to be unused, what a base asks for, and what another
    forward of the file reads in its place, which may stand for it, is not wanted.
    """
    kind, code = type(module), _code(type(module))
    if code is None or not _leaves_alone(kind, name) or _is_of_a_base(kind, code, name):
        return False
    said = inspect.getdoc(kind) or ""
    if (name in said and _FOR_SHOW.search(said)) or is_used_in_its_place(code, name, module, module):
        return False
    return bool(attending_parts(module, call, length))


def is_left_by_parts(module: nn.Module, call: Callable[[], object], length: int) -> bool:
    """Whether the call hands a part that attends a tensor, by the name of a mask, of which its forward makes nothing.

    `call` is one with so many tokens. What the source says to be unused is not wanted.
    """
    left: list[nn.Module] = []

    def see(part: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        if _code(type(part)) is None:
            return
        bound = attempt(lambda: inspect.signature(part.forward).bind(*given, **named).arguments)
        if isinstance(bound, Caught):
            return
        masks = [name for name, value in bound.items() if _MASK.search(name) and isinstance(value, Tensor)]
        if any(_leaves_alone(type(part), name) for name in masks):
            left.append(part)

    handles = [part.register_forward_pre_hook(see, with_kwargs=True) for part in module.modules() if part is not module]
    try:
        attempt(call)
    finally:
        for handle in handles:
            handle.remove()
    if any(_ATTENDS.search(inspect.getsource(type(part).forward)) for part in left):
        return True
    attending = attending_parts(module, call, length) if left else []
    return any(part is each for part in left for each in attending)


def _leaves_alone(kind: type[nn.Module], name: str) -> bool:
    """Whether its forward makes nothing of that argument, or only another form of it, and does not say why."""
    code, source = _code(kind), attempt(lambda: inspect.getsource(kind.forward))
    if code is None or not isinstance(source, str) or _FOR_SHOW.search(source):
        return False
    if not Receiver(code, name).reads:
        return True
    tree = attempt(lambda: ast.parse(textwrap.dedent(source)).body[0])
    forward = inspect.unwrap(kind.forward)
    known = forward.__globals__ if isinstance(forward, FunctionType) else {}
    return isinstance(tree, ast.FunctionDef) and name in converted_alone(tree, known)


def _is_of_a_base(kind: type[nn.Module], code: CodeType, name: str) -> bool:
    """Whether a class that it is derived from has a forward of its own that takes the argument too."""
    codes = [_code(each) for each in kind.__mro__ if issubclass(each, nn.Module) and "forward" in vars(each)]
    return any(each is not None and each is not code and _takes(each, name) for each in codes)


def _code(kind: type[nn.Module]) -> CodeType | None:
    """The code of its forward; None for one of torch's."""
    forward = inspect.unwrap(kind.forward)
    return None if kind.__module__.startswith("torch.") else getattr(forward, "__code__", None)


def _takes(code: CodeType, name: str) -> bool:
    return name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

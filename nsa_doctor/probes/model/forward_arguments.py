"""What the forward of a module asks for beside the one tensor that it is given."""

import inspect
from collections.abc import Iterable

from torch import nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.internal import hooks_of

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def asked_arguments(module: nn.Module, ways: Iterable[str | None]) -> tuple[str, ...]:
    """The arguments without a default, where a tensor alone will not do, given by position (None) or by these names.

    Empty where it will do, and where hooks or a `__call__` of its own may give the forward more than a caller does.
    """
    signature = attempt(lambda: inspect.signature(module.forward))
    is_given_more = type(module).__call__ is not nn.Module.__call__ or any(hooks_of(module))
    if isinstance(signature, Caught) or is_given_more or any(_binds(signature, way) for way in ways):
        return ()
    return tuple(
        name
        for name, each in signature.parameters.items()
        if each.kind not in _VARIADIC and each.default is inspect.Parameter.empty
    )


def _binds(signature: inspect.Signature, name: str | None) -> bool:
    bound = attempt(lambda: signature.bind(None) if name is None else signature.bind(**{name: None}))
    return not isinstance(bound, Caught)

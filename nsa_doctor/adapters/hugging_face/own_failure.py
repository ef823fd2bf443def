"""Whether a model raises by its own fault: in the sizes that its configuration has too, where nothing is computed."""

import inspect
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from nsa_doctor.adapters.hugging_face.classes import ModelClasses
from nsa_doctor.core.errors import Caught, SubjectFailedError, attempt
from nsa_doctor.probes.model.deliberate import is_on_purpose

_TOKENS = 20
_OF_META = ("meta", "data-dependent", "data-independent")  # what an operation without values refuses, in its words


def own_failure(
    classes: ModelClasses, chosen: Mapping[str, str], raised: Sequence[Caught], first_token: int
) -> SubjectFailedError | None:
    """What small models raised in a pass, where one of the sizes that its configuration has raises it in the same line.

    None where that one cannot be made, answers, refuses on purpose, or is stopped by what has no values: a small model
    may have sizes then that its type does not serve.
    """
    with torch.device("meta"), torch.no_grad():
        module = attempt(lambda: classes.built(dict(classes.given), **chosen))
        if isinstance(module, Caught):
            return None
        ids = torch.full((2, _TOKENS), first_token)
        caught = attempt(lambda: module(input_ids=ids))
    if not isinstance(caught, Caught) or any(word in caught.sentence for word in _OF_META):
        return None
    where = _where(module, caught)
    same = next((each for each in raised if where is not None and _where(module, each) == where), None)
    if same is None:
        return None
    failure = SubjectFailedError("forward", same, module)
    return None if is_on_purpose(failure, (type(module).__module__.partition(".")[0],)) else failure


def _where(module: nn.Module, caught: Caught) -> tuple[type, Any] | None:
    """The kind of an exception, and the innermost line in the file of the model's class that it came through."""
    file = inspect.getsourcefile(type(module))
    lines = [line for frame, line in traceback.walk_tb(caught.error.__traceback__) if frame.f_code.co_filename == file]
    return (type(caught.error), lines[-1]) if lines else None

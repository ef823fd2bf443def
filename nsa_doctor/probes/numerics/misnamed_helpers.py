"""Small functions of the subject's own (of masks, lengths, logits) that do not answer what their names say."""

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.outward_calls import reaches_out, sources_within_call
from nsa_doctor.probes.model.own_functions import OwnFunction, own_functions
from nsa_doctor.probes.model.state import preserved_state
from nsa_doctor.probes.numerics.known_helpers import HELPERS, Asking, Helper
from nsa_doctor.probes.numerics.named_parts import Misnamed

_CLOSE = 1e-3  # of the largest: an epsilon beside a count is no fault
_CLOSE_IN_HALF = 2e-2
_HIDDEN = -15.0
_FACTOR = re.compile(r"temp|tau|scale|alpha|beta|factor|top|stride")
_MOST = 40


def misnamed_helpers(sp: BuiltModule) -> Iterator[Misnamed]:
    """Those of the files loaded from the subject's packages, asked on made-up values, whether a pass calls them or not.

    One that answers rightly in any convention, or in another form, is left alone.
    """
    is_meant = lambda name: any(each.name.search(name) for each in HELPERS)  # noqa: E731
    for number, each in enumerate(own_functions(sp, is_meant)):
        helper = next(helper for helper in HELPERS if helper.name.search(each.name))
        text = attempt(lambda each=each, helper=helper: departure(each, helper)) if number < _MOST else ""
        if isinstance(text, str) and text:
            yield Misnamed(each.name, each.name, text, each.place)


def departure(each: OwnFunction, helper: Helper) -> str:
    """What is seen against its name; nothing where one way to ask it comes out right, or none can be judged."""
    parameters = list(inspect.signature(each.function).parameters.values())
    names = [parameter.name.lower() for parameter in parameters]
    seconds = [name for name in names[:2] if len(helper.takes) > 1 and re.search(helper.takes[1], name)]
    is_turned = len(names) > 1 and bool(seconds) and names[1] not in seconds
    order = names[1::-1] + names[2:] if is_turned else names
    if len(names) < len(helper.takes) or not all(map(re.search, helper.takes, order)):
        return ""
    if any(map(_is_another, parameters)) or any(map(reaches_out, sources_within_call(each.function))):
        return ""
    texts = []
    for asking in helper.ask(order):
        given = (asking.given[1], asking.given[0], *asking.given[2:]) if is_turned else asking.given
        if any(parameter.default is parameter.empty for parameter in parameters[len(given) :] if _is_plain(parameter)):
            continue
        with unobserved(), torch.no_grad(), preserved_state():
            answer, again = (attempt(lambda given=given: helper.read(_asked(each, given))) for _ in range(2))
        if isinstance(answer, Caught) or isinstance(again, Caught) or not torch.equal(answer, again):
            continue
        fitting = [right for right in asking.right if _fits(answer, right)]
        if any(_is_near(answer, right) for right in fitting):
            return ""
        if fitting:
            texts.append(_text(answer, fitting, asking, helper))
    return texts[0] if texts else ""


def _is_plain(parameter: inspect.Parameter) -> bool:
    return parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _is_another(parameter: inspect.Parameter) -> bool:
    """Whether its default makes it another operation: a temperature that is not one, a number in place of a tensor."""
    value = parameter.default
    is_number = type(value) in (int, float)
    is_factor = bool(_FACTOR.search(parameter.name.lower())) and is_number and value != 1
    return is_factor or (is_number and "mask" in parameter.name.lower())


def _asked(each: OwnFunction, given: Sequence[Any]) -> Tensor:
    """Its answer to copies."""
    answer = each.function(*(value.clone() if isinstance(value, Tensor) else value for value in given))
    first = answer[0] if isinstance(answer, tuple) and answer else answer
    if not isinstance(first, Tensor):
        raise TypeError("its answer is no tensor")
    return first.detach()


def _fits(answer: Tensor, right: Tensor) -> bool:
    """Whether they have one shape but for axes of one."""
    return [size for size in answer.shape if size != 1] == [size for size in right.shape if size != 1]


def _is_near(answer: Tensor, right: Tensor) -> bool:
    """Whether they are equal but for an epsilon; minus infinity may be any large negative number, or zero."""
    one, other = answer.to(torch.float64).flatten(), right.to(torch.float64).flatten()
    close = _CLOSE_IN_HALF if answer.element_size() == 2 and answer.is_floating_point() else _CLOSE
    is_known = other.isfinite()
    apart = (one - other)[is_known].abs()
    most = close * float(other[is_known].abs().max().clamp_min(_CLOSE))
    return bool((apart <= most).all()) and bool(((one < _HIDDEN) | (one == 0))[~is_known].all())


def _text(answer: Tensor, fitting: Sequence[Tensor], asking: Asking, helper: Helper) -> str:
    """Beside the answer that it comes nearest to."""
    one = answer.to(torch.float64).flatten()
    nearest = min((each.to(torch.float64).flatten() for each in fitting), key=lambda each: _distance(one, each))
    at = int((one - nearest).nan_to_num(torch.inf, torch.inf, torch.inf).abs().argmax())
    shapes = ", ".join(str(list(each.shape)) for each in asking.given if isinstance(each, Tensor))
    return f"value {at} is {one[at]:.4g} where {helper.words} is {nearest[at]:.4g}, asked with tensors of {shapes}"


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).nan_to_num(1e9, 1e9, -1e9).abs().sum())

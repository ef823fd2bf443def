"""Whether what is written of a module says that training and evaluation differ on purpose."""

import inspect
import re
from collections.abc import Iterator
from functools import partial

from torch import nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.internal import part_at

_MODES = (re.compile(r"\btrain", re.IGNORECASE), re.compile(r"\b(eval|infer|serv|generat|decod|test)", re.IGNORECASE))
_MEANT = re.compile(
    r"\b(on purpose|purposely|deliberate(ly)?|intended|intentional(ly)?|by design|as designed)\b", re.IGNORECASE
)
_SENTENCE = re.compile(r"(?<=[.;:])\s+")


def is_said_to_depend_on_mode(root: nn.Module, place: Place) -> bool:
    """Whether a docstring of the part at that place, or of one around it, says so, all in two sentences on end."""
    for text in _texts(root, place):
        sentences = _SENTENCE.split(" ".join(text.split()))
        for first, second in zip(sentences, [*sentences[1:], ""], strict=True):
            said = f"{first} {second}"
            if _MEANT.search(said) and all(mode.search(said) for mode in _MODES):
                return True
    return False


def _texts(root: nn.Module, place: Place) -> Iterator[str]:
    path = place.module.split(".") if place.module else []
    for count in range(len(path) + 1):
        part = attempt(partial(part_at, root, ".".join(path[:count])))
        if isinstance(part, Caught):
            return
        kinds = [kind for kind in type(part).__mro__ if not kind.__module__.startswith("torch.")]
        for kind in kinds:
            own = (each for each in vars(kind).values() if inspect.isfunction(each))
            yield from (each.__doc__ or "" for each in (kind, *own))

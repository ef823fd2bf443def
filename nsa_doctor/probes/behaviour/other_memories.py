"""What a forward may be given to attend to beside its input, as a decoder is what its encoder gives, in two values."""

import inspect
import re
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.attention.reset_cache import Given, Reset
from nsa_doctor.probes.behaviour.optional_arguments import giving, is_another, of_vectors
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule

_MEMORIES = frozenset(
    {
        *("memory", "context", "ctx", "encoder_out", "encoder_output", "encoder_outputs", "encoder_hidden_states"),
        *("enc_out", "enc_output", "enc", "encoded", "cross_states", "cross_attention_states", "audio_features", "xa"),
        *("source", "src", "cond", "condition"),
    }
)
_OF_TOKENS = 3  # dimensions: [B, N, width]
_BY_ITSELF = re.compile(r"_?(re_?set|clear|set|drop|new)_\w*(cross|memor|encoder|enc|context|source|audio)\w*")


def given_beside(sp: BuiltModule, x: Tensor, reset: Reset | None) -> Iterator[tuple[str, tuple[Given, Given]]]:
    """What is given beside a prompt and another: nothing, and each memory that the forward takes, in two values.

    No memory where what has the reset has another method for these, which the one then is not for.
    """
    yield "", (nullcontext, nullcontext)
    owner = None if reset is None else getattr(reset.method, "__self__", None)
    if any(_BY_ITSELF.fullmatch(name) for name in dir(owner)):
        return
    with unobserved():
        memories = list(_two_memories(sp, x))
    for name, *pair in memories:
        one, other = (partial(giving, sp.module, {name: each}) for each in pair)
        yield f" with another {name}", (one, other)


def _two_memories(sp: BuiltModule, x: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Of each such argument two values [B, N, width] that it takes, and that give other answers for x [B, S, ...]."""
    parameters = attempt(lambda: inspect.signature(sp.module.forward).parameters)
    for name, parameter in () if isinstance(parameters, Caught) else parameters.items():
        if name not in _MEMORIES or parameter.default is not None:
            continue
        for make in of_vectors(sp, {"context"}):
            one = make(x)
            if one.ndim == _OF_TOKENS and _are_answered_apart(sp, x, name, one, 1 - one):
                yield name, one, 1 - one
                break


def _are_answered_apart(sp: BuiltModule, x: Tensor, name: str, *memories: Tensor) -> bool:
    answers = []
    for each in memories:
        with giving(sp.module, {name: each}), torch.no_grad():
            answers.append(attempt(lambda: sp(x)))
    one, other = answers
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return False
    return one.shape == other.shape and is_another(one, other)

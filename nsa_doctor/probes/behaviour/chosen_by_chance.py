"""Optional arguments whose effect in evaluation is left to chance: equal calls with them differ, without them not.

What is drawn says what it is for: uniform numbers decide whether something is dropped; normal ones may be a sample that
is asked for, and count where a number alone scales them. A time tells how much noise its tokens get, so that what is
drawn for every token is none of its faults.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.probes.behaviour.optional_arguments import Made, giving, is_another, of_rows, of_vectors, words_of
from nsa_doctor.probes.hooks.recording import Operation, Recording
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.draws import Generators
from nsa_doctor.probes.model.state import seed_everything
from nsa_doctor.probes.numerics.divergence import Divergence, divergence_of, recording_of
from nsa_doctor.probes.numerics.paired_operations import OF_LAYOUT

_NUM_SEEDS = 12
_UNIFORM = frozenset({"rand", "rand_like", "uniform", "bernoulli", "dropout", "native_dropout", "randint", "random"})
_NORMAL = frozenset({"randn", "randn_like", "normal", "normal_functional"})
_COPYING = frozenset({"detach", "clone", "to_copy", "alias"})
_OF_CHANCE = frozenset(  # words of arguments by which a caller says how much chance there is, or that there is none
    {
        *("drop", "dropped", "dropout", "prob", "p", "ratio", "rate", "forcing", "train", "training", "deterministic"),
        *("generator", "seed", "rng", "noise", "sample", "sampling", "uncond", "sigma", "sigmas", "temperature", "tau"),
        *("augment", "jitter", "stochastic", "targets", "target", "tgt", "trg", "eps", "epsilon"),
    }
)
_OF_TIME = frozenset({"t", "time", "times", "timestep", "timesteps", "step", "steps", "level", "alpha"})
_OF_TOKENS = frozenset(
    {
        *("mask", "masks", "position", "positions", "pos", "segment", "segments", "type", "types", "ids", "token"),
        *("keep", "valid", "padding"),
    }
)


@dataclass(frozen=True)
class ByChance:
    """An argument, and where two equal calls with it part; how many of so many rows one seed answers otherwise."""

    name: str
    divergence: Divergence
    num_rows: int
    rows: int


def chosen_by_chance(sp: BuiltModule, x: Tensor, taken: list[str]) -> Iterator[ByChance]:
    """Those of the module's optional arguments, tried with x [B, S, ...]; `taken` gets the names of those it takes."""
    parameters = attempt(lambda: inspect.signature(sp.module.forward).parameters)
    if isinstance(parameters, Caught) or any(_OF_CHANCE & words_of(name) for name in parameters):
        return
    plain = sp(x)
    for name, parameter in parameters.items():
        if parameter.default is None or type(parameter.default) in (int, float):
            tried = (_differing(sp, x, name, make, plain, taken) for make in _made_for(sp, words_of(name)))
            yield from [found for found in [next((each for each in tried if each is not None), None)] if found]


def _made_for(sp: BuiltModule, words: set[str]) -> list[Made]:
    """What makes values for an argument of that name."""
    return [*of_rows(words), *of_vectors(sp, words), *(_BY_TOKEN if _OF_TOKENS & words else ())]


_BY_TOKEN: tuple[Made, ...] = (
    lambda x: torch.ones(x.shape[:2], dtype=torch.bool, device=x.device),
    lambda x: torch.arange(x.shape[1], device=x.device).expand(len(x), -1) % 2,
    lambda x: torch.arange(x.shape[1], device=x.device).expand(len(x), -1).contiguous(),
    lambda x: torch.arange(x.shape[1], device=x.device),
)


def _differing(sp: BuiltModule, x: Tensor, name: str, make: Made, plain: Tensor, taken: list[str]) -> ByChance | None:
    """Where equal calls with this value part, by the seed alone, and no call without it does."""
    value = make(x)
    seeded = [_seeded(sp, number) for number in range(_NUM_SEEDS)]
    first, drawn_from = _drawing(seeded[0], x, name, value)
    if not isinstance(first, Tensor) or first.shape != plain.shape:
        return None
    taken.append(name)
    if not drawn_from:
        return None
    for other in seeded[1:]:
        second = _answer(other, x, name, value)
        if isinstance(second, Tensor) and second.shape == first.shape and is_another(first, second):
            break
    else:
        return None
    if is_another(first, _answer(seeded[0], x, name, value)) or is_another(seeded[0](x), other(x)):
        return None
    one, two = (recording_of(sp, partial(_answer, each, x, name, value)) for each in (seeded[0], other))
    divergence = divergence_of(sp, one, two, {})
    of_torch = drawn_from == ("torch's",) or drawn_from == ("CUDA's",)
    if of_torch and not _is_a_fault(_draws(one, divergence), one, x, words_of(name)):
        return None
    num_rows = sum(is_another(here, there) for here, there in zip(first, second, strict=True))
    return ByChance(name, divergence, num_rows, len(x))


def _seeded(sp: BuiltModule, number: int) -> BuiltModule:
    return replace(sp, subject=replace(sp.subject, seed=sp.subject.seed + number))


def _answer(sp: BuiltModule, x: Tensor, name: str, value: Any) -> Tensor:
    with giving(sp.module, {name: value}):
        return sp(x)


def _drawing(sp: BuiltModule, x: Tensor, name: str, value: Any) -> tuple[object, tuple[str, ...]]:
    """What a call gives or raises, and the generators that it draws from."""
    seed_everything(sp.subject.seed)  # as the call begins
    generators = Generators()
    answer = attempt(partial(_answer, sp, x, name, value))
    return answer, generators.drawn_from()


def _draws(recording: Recording, divergence: Divergence) -> list[tuple[int, Operation]]:
    """What draws at the line where the calls part; everything that draws where nothing there does."""
    drawn = [each for each in enumerate(recording.operations) if _plain(each[1]) in _UNIFORM | _NORMAL]
    at = (divergence.place.file, divergence.place.line)
    return [each for each in drawn if (each[1].place.file, each[1].place.line) == at] or drawn


def _plain(operation: Operation) -> str:
    return operation.name.rstrip("_")


def _is_a_fault(drawn: list[tuple[int, Operation]], recording: Recording, x: Tensor, words: set[str]) -> bool:
    """Whether each of what is drawn is drawn to drop something, or is noise of one size."""
    if not drawn:
        return False
    for number, operation in drawn:
        is_of_tokens = any(x.shape[1] in result.shape for result in operation.results)
        is_normal = _plain(operation) in _NORMAL
        if is_of_tokens and (is_normal or words & _OF_TIME):
            return False
        if is_normal and any(len(each.read) > 1 for each in _readers(recording, number)):
            return False
    return True


def _readers(recording: Recording, number: int) -> Iterator[Operation]:
    """What reads the result of an operation, beyond what lays it out otherwise."""
    for index, each in enumerate(recording.operations):
        if number in each.makers and index > number:
            yield from _readers(recording, index) if each.name in OF_LAYOUT | _COPYING else [each]

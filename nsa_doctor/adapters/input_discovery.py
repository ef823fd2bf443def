"""Finds out what a module takes by asking it: kind of input, width, and the parameter it goes in through."""

import dis
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.adapter_words import adapter_words
from nsa_doctor.core.errors import Caught, SubjectFailedError, attempt
from nsa_doctor.core.frames import FrameFilter
from nsa_doctor.core.measurement import Mode, Point
from nsa_doctor.core.text import joined
from nsa_doctor.probes.model.forward_arguments import asked_arguments
from nsa_doctor.probes.model.perform import Conditions, perform
from nsa_doctor.subject.contract import InputKind, Subject, SubjectUnusableError, WrongOutputError

_MOST_LENGTHS_ASKED = 2
WHOLE_IN_MANY = 960  # for what serves whole multiples of its block alone, of any usual size
_NUMBERS = re.compile(r"\d+")
_OF_THE_MACHINE = re.compile(r"cuda|cpu|device|implement|install|compil", re.IGNORECASE)
_OF_THE_INPUT = re.compile(
    r"shape|size|dim|channel|mat[12]|broadcast|expected|length|\bd?type\b|'Tensor' object|" + _OF_THE_MACHINE.pattern,
    re.IGNORECASE,
)
_OF_OTHER_IDS = re.compile(r"out of (bounds|range)|num_classes|values to unpack|'Tensor' object")
_OF_THE_WAY = (TypeError, LookupError, ImportError, NotImplementedError)
_NAMES: dict[InputKind, tuple[str, ...]] = {
    "embeddings": ("inputs_embeds", "hidden_states", "x"),
    "tokens": ("input_ids", "ids", "tokens", "x"),
}


def parameter_names(module: nn.Module, kind: InputKind) -> list[str | None]:
    """Ways to hand the input over: by position (None) where the forward takes that, and by the names it knows."""
    try:
        parameters = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return [None]
    by_position = {"POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD", "VAR_POSITIONAL"}
    positions = [name for name, parameter in parameters.items() if parameter.kind.name in by_position]
    ways: list[str | None] = [None] if positions else []
    ways += [name for name in _NAMES[kind] if name in parameters and name not in positions[:1]]
    return ways or [None]


def require_one_input(spec: str, module: nn.Module) -> None:
    """Raise SubjectUnusableError where its forward cannot do with its input alone, and say which adapter helps."""
    asked = asked_arguments(module, dict.fromkeys(name for kind in _NAMES for name in parameter_names(module, kind)))
    if asked:
        raise SubjectUnusableError(
            f"subject {spec} is given one tensor, and its forward asks for {joined(asked)}: name a function that "
            f"returns nsa_doctor.{adapter_words(spec.rpartition(':')[2], asked)}"
        )


def caller(name: str | None) -> Callable[[nn.Module, Tensor], Any]:
    """Calls a module with its input by position or by name."""
    return lambda module, x: called(module, x, name, {})


def called(module: nn.Module, x: Tensor, name: str | None, options: Mapping[str, Any]) -> Any:
    """What the module gives for its input, by position or by name, and for options beside it."""
    return module(x, **options) if name is None else module(**{name: x}, **options)


def is_lazy(module: nn.Module) -> bool:
    """Whether some parameter or buffer gets its shape in the first forward."""
    held = (*module.parameters(), *module.buffers())
    return any(nn.parameter.is_lazy(tensor) for tensor in held)


def ask(
    guesses: Sequence[Subject],
    module: nn.Module,
    lengths: Sequence[int],
    asking: Callable[[int], None],
    is_declared: bool,
) -> Subject:
    """The first guess at what the module takes that it accepts.

    One whose output is wrong comes next, then one about which the module itself complains, unless it takes in another,
    then one that it takes in and fails on later, then any where what it raises has nothing to do with what it is given:
    those are findings.
    Raises SubjectUnusableError when none of that holds; with `is_declared` the user answers for the guess, and where
    tokens alone are guessed for their being tokens.
    """
    if len(guesses) == 1 and is_declared:
        return guesses[0]
    failures: list[tuple[Subject, SubjectFailedError]] = []
    tried = [*lengths[:_MOST_LENGTHS_ASKED], lengths[-1], WHOLE_IN_MANY] if lengths else []
    for length in dict.fromkeys(tried):
        asking(length)
        for guess in guesses:
            failure = _failure(guess, module, Point(length=length, dtype=guess.dtype, mode=lightest_mode(guess)))
            if failure is None:
                return _as_it_answers(guess, module, length)
            if failure.phase in ("train", "eval"):  # it fails before it is given anything
                return guess
            failures.append((guess, failure))
        for guess in guesses:
            if vocabulary := _largest_vocabulary(guess, module, length, failures):
                return replace(guess, width=vocabulary)
    taken_in = [guess for guess in guesses if failures and _is_taken_in(guess, module, min(lengths))]
    for is_finding in (_is_wrong_output, speaks_for_itself):
        for guess, failure in failures:
            goes_as_far = not taken_in or any(guess is each for each in taken_in)
            if is_finding(failure.caught.error) and (goes_as_far or is_finding is _is_wrong_output):
                return guess
    if taken_in:
        return taken_in[0]
    if not failures:
        return guesses[0]
    if (whatever := _raises_whatever_is_given(failures, module)) is not None:
        return whatever
    if _are_of_no_other_vocabulary(failures):
        return guesses[0]
    first = {guess.input: (guess, failure) for guess, failure in reversed(failures)}
    raised = "; ".join(_raised(guess, failure) for guess, failure in (first[kind] for kind in sorted(first)))
    raise SubjectUnusableError(
        f"subject {failures[0][0].name} takes neither embeddings [1, S, width] nor token ids [1, S] as they were "
        f"guessed; {raised}; say what it takes with --input and --width"
    )


def _are_of_no_other_vocabulary(failures: Sequence[tuple[Subject, SubjectFailedError]]) -> bool:
    """Whether tokens were asked for, and its own code raises what no other vocabulary would cure."""

    def is_own(guess: Subject, error: BaseException) -> bool:
        has_line = FrameFilter(guess.packages).of_traceback(error.__traceback__) is not None
        is_answer = isinstance(error, (IndexError, ImportError, NotImplementedError))
        is_answer |= _OF_OTHER_IDS.search(str(error)) is not None
        is_asked_otherwise = isinstance(error, TypeError) and "argument" in str(error)
        return has_line and not (is_answer or is_asked_otherwise or _OF_THE_MACHINE.search(str(error)))

    return all(guess.input == "tokens" and is_own(guess, failure.caught.error) for guess, failure in failures)


def _raised(guess: Subject, failure: SubjectFailedError) -> str:
    """What it raises for this guess, and where."""
    line = FrameFilter(guess.packages).of_traceback(failure.caught.error.__traceback__)
    where = f" at {PurePath(line.file).name}:{line.line}" if line is not None else ""
    return f"given {guess.input} of width {guess.width} it raises {failure.caught.sentence}{where}"


def lightest_mode(guess: Subject) -> Mode:
    """The mode to try it in: the lightest it runs in."""
    return "no_grad" if "no_grad" in guess.modes else guess.modes[-1]


def _failure(guess: Subject, module: nn.Module, point: Point) -> SubjectFailedError | None:
    asked = guess if is_lazy(module) else replace(guess, build=lambda _seed: module)
    try:
        perform(asked, point, Conditions(device=guess.device, forward_only=True, measures_memory=False))
    except SubjectFailedError as failure:
        return failure
    return None


def _is_taken_in(guess: Subject, module: nn.Module, length: int) -> bool:
    """Whether two modules with parameters do their work before it raises: the wrong input fails at the first.

    One will do where it takes nothing but the right kind and width.
    """
    done: list[nn.Module] = []
    held = [part for part in module.modules() if part is not module and any(True for _ in part.parameters(False))]
    handles = [part.register_forward_hook(lambda part, _given, _made: done.append(part)) for part in held]
    try:
        _failure(guess, module, Point(length=length, dtype=guess.dtype, mode=lightest_mode(guess)))
    finally:
        for handle in handles:
            handle.remove()
    return len(set(done)) > 1 or any(isinstance(part, (nn.Linear, nn.Embedding)) for part in done)


def _raises_whatever_is_given(
    failures: Sequence[tuple[Subject, SubjectFailedError]], module: nn.Module
) -> Subject | None:
    """A guess at embeddings, where those of every width raise one error at one line, which speaks of no input.

    None where its forward takes more than its input: then it may want that.
    """
    parameters = attempt(lambda: inspect.signature(module.forward).parameters)
    if isinstance(parameters, Caught) or len(parameters) != 1:
        return None
    of_embeddings = [(guess, failure) for guess, failure in failures if guess.input == "embeddings"]
    frames = FrameFilter(of_embeddings[0][0].packages if of_embeddings else ())
    raised = {
        (
            type(each.caught.error),
            _NUMBERS.sub("", str(each.caught.error)),
            frames.of_traceback(each.caught.error.__traceback__),
        )
        for _, each in of_embeddings
    }
    if len(raised) != 1 or len({guess.width for guess, _ in of_embeddings}) < 2:
        return None
    kind, text, _ = next(iter(raised))
    is_of_input = issubclass(kind, _OF_THE_WAY) or _OF_THE_INPUT.search(text) is not None
    return None if is_of_input else of_embeddings[0][0]


def _as_it_answers(guess: Subject, module: nn.Module, length: int) -> Subject:
    """The guess; of tokens as many as there are logits, where the last of the table's rows are refused for an index."""
    point = Point(length=length, dtype=guess.dtype, mode=lightest_mode(guess), values="constant")
    failure = None if guess.input != "tokens" else _failure(guess, module, point)
    if failure is None:
        return guess
    served = _largest_vocabulary(guess, module, length, [(guess, failure)])
    logits = None if served is None else attempt(lambda: _num_logits(replace(guess, width=served), module, length))
    return replace(guess, width=served) if served is not None and logits == served else guess


def _num_logits(guess: Subject, module: nn.Module, length: int) -> int:
    x = torch.zeros(1, length, dtype=torch.long)
    with torch.no_grad():
        return guess.forward(module, x).shape[-1]


def _largest_vocabulary(
    guess: Subject, module: nn.Module, length: int, failures: Sequence[tuple[Subject, SubjectFailedError]]
) -> int | None:
    """The largest vocabulary that works, where this guess was refused for an index; None when there is none."""
    errors = [failure.caught.error for other, failure in failures if other is guess]
    if guess.input != "tokens" or not any(isinstance(error, IndexError) for error in errors):
        return None

    def works(vocabulary: int) -> bool:
        point = Point(length=length, dtype=guess.dtype, mode=lightest_mode(guess), values="constant")
        refused = _failure(replace(guess, width=vocabulary), module, point)
        return refused is None or _is_wrong_output(refused.caught.error)  # as one answer for a row is

    least, least_bad = 1, guess.width
    if not works(1):
        return None
    while least + 1 < least_bad:
        middle = (least + least_bad) // 2
        least, least_bad = (middle, least_bad) if works(middle) else (least, middle)
    return least


def _is_wrong_output(error: BaseException) -> bool:
    return isinstance(error, WrongOutputError)


def speaks_for_itself(error: BaseException) -> bool:
    """Whether the subject's own code raises, in so many words, or memory or the process gave out."""
    traceback = error.__traceback__
    if traceback is None or not isinstance(error, Exception):
        return True
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    raises = dis.opname[code.co_code[traceback.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")
    return isinstance(error, MemoryError) or (raises and FrameFilter().rank(code.co_filename) >= 2)

"""Words around a random mask: that one is meant for all rows of a batch, or that a row is meant to lose all of it."""

import inspect
import linecache
import re
from collections.abc import Iterator

from torch import nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.internal import part_at

_TIMES = (  # for which one mask is the same, so that it is another for each row
    r"(?:each|every|per|(?:along|across|over|to|through|for|at|in) (?:all |the |of )*"
    r"(?:time|tokens?|positions?|steps?|timesteps?|frames?|words?|sequence))\b"
)
_FOR_ALL_ROWS = re.compile(
    rf"\b(?:one|same|shar(?:e|es|ed|ing)|single|common|identical)\b(?:(?!\b{_TIMES})[^.;]){{0,60}}?"
    r"\b(?:batch|rows|samples|sequences|examples|sentences|items)\b"
    r"|\b(?:same|shared|identical)\b[^.;]{0,40}\b(?:each|every) (?:row|sample|sequence|example|sentence|item)\b"
    r"|\b(?:across|over|along) (?:the |all |a |whole |entire )*(?:mini-?)?batch\b|\bbatch[- ](?:wise|wide|level)\b",
    re.IGNORECASE,
)
_NAME_FOR_ALL_ROWS = re.compile(
    r"batch_?(?:wise|shared|mask)|shared_?(?:over|across|by|for|in)|for_?(?:the_?)?batch|spec_?aug"
    r"|(?:time|freq\w*|frame|span|token|patch)_?mask|(?<![a-z])mae(?![a-z])|MAE"
    r"|(?<![a-z])corrupt|drop_?(?:node|edge)|(?<!para)graph(?:_?(?:conv|net|att|layer|encoder)|$)|(?<![a-z])g(?:cn|nn)"
    r"|mask(?:ed|ing)?_?(?:auto|image|patch|token|lang|frame|span|model)|pretraining",
    re.IGNORECASE,
)
_NAME_OF_CONDITION = re.compile(
    r"cond|caption|label|guidance|modal(?!l)|prompt|cfg|speaker|sensor|camera|class_?(?:emb|label|cond|drop|free)"
    r"|(?<![a-z])null|cold_?start|drop_?out_?net|encoder_?drop|drop_?encoder|retriev|(?<![a-z])mem(?:ory)?(?![a-z])",
    re.IGNORECASE,
)
_NAME_OF_ROWS = re.compile(
    r"sentence|sample|utterance|example|instance|row|view|stream|source|context|whole|entire|full", re.IGNORECASE
)
_NAME_OF_LEAVING_OUT = re.compile(r"drop|mask|augment|noise|skip|zero", re.IGNORECASE)
_NAME_OF_BRANCH = re.compile(r"path|depth|branch|residual|skip|layer|block|connection|survival", re.IGNORECASE)
_OF_WHOLE = re.compile(
    r"\b(?:whole|entire|full|complete)\s(?:\w+ ){0,1}(?:rows?|samples?|sequences?|sentences?|examples?|utterances?"
    r"|inputs?|items?|modalit\w+|batch)\b|\bclassifier[- ]free\b|\bcold[- ]start|\bunconditional",
    re.IGNORECASE,
)
_NAME_OF_TOKENS = re.compile(r"word|token|char|frame|piece|byte|symbol|unk", re.IGNORECASE)


def is_for_all_rows(root: nn.Module, places: list[Place]) -> bool:
    """Whether names or remarks there say that the mask is one for the batch."""
    return any(_NAME_FOR_ALL_ROWS.search(name) for name in _names(root, places)) or any(
        _FOR_ALL_ROWS.search(each) for each in _remarks(root, places)
    )


def is_of_whole_rows(root: nn.Module, places: list[Place]) -> bool:
    """Whether names or remarks there, or the lines themselves, say that rows or what they stand for are left out."""
    names, lines = list(_names(root, places)), [linecache.getline(each.file, each.line) for each in places]
    is_condition = any(_NAME_OF_CONDITION.search(each) for each in (*names, *lines))
    is_of_rows = any(_NAME_OF_ROWS.search(each) and _NAME_OF_LEAVING_OUT.search(each) for each in names)
    return is_condition or is_of_rows or any(_OF_WHOLE.search(each) for each in _remarks(root, places))


def is_of_a_branch(root: nn.Module, places: list[Place]) -> bool:
    """Whether names there say that a branch is dropped, which something else goes around."""
    return any(_NAME_OF_BRANCH.search(name) for name in _names(root, places))


def is_of_tokens(root: nn.Module, places: list[Place]) -> bool:
    """Whether names there say that single tokens are replaced."""
    return any(_NAME_OF_TOKENS.search(name) for name in _names(root, places))


def _names(root: nn.Module, places: list[Place]) -> Iterator[str]:
    """Of the functions, of the modules' classes and of the attributes that hold them."""
    for place in places:
        function = place.function if place.function != "forward" else ""
        yield from (function, place.module_class if place.module else type(root).__name__)
        yield from [each for each in place.module.split(".") if not each.isdigit()][-1:]


def _remarks(root: nn.Module, places: list[Place]) -> Iterator[str]:
    """The docstrings of the modules' classes, and the functions around the lines with what is said in them."""
    for place in places:
        holder = attempt(lambda place=place: part_at(root, place.module))
        kind = type(root if isinstance(holder, Caught) else holder)
        text = kind.__dict__.get("__doc__")
        if isinstance(text, str) and not kind.__module__.startswith("torch."):
            yield " ".join(inspect.cleandoc(text).split())
        yield " ".join(_function_around(place).split())


def _function_around(place: Place) -> str:
    """The text of the innermost function that a line is in, and of the comments above it."""
    text = linecache.getlines(place.file)
    if not 0 < place.line <= len(text):
        return ""
    first, indent = place.line - 1, _indent(text[place.line - 1])
    while first > 0 and not (text[first].lstrip().startswith("def ") and _indent(text[first]) < indent):
        first -= 1
    last, margin = first + 1, _indent(text[first])
    while last < len(text) and (not text[last].strip() or _indent(text[last]) > margin):
        last += 1
    while first > 0 and text[first - 1].lstrip().startswith("#"):
        first -= 1
    return "".join(text[first:last]).replace("#", " ")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())

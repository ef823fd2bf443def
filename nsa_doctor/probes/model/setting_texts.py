"""What the text of a source says of a variable of the environment: which words it may hold, and when it is read."""

import ast
import linecache
import re
import sys
from collections.abc import Iterator, Sequence

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.measurement import Place
from nsa_doctor.probes.model.identity import loaded_files

_AT_EVERY_CALL = re.compile(
    r"\b(?:at|on|in|for|with|before) (?:every|each) (?:call|step|forward|pass|use|time)\b"
    r"|\bevery time\b|\bcall by call\b|\brunning process can be\b",
    re.IGNORECASE,
)
_LISTED = r"['\"]?[A-Za-z][\w-]*['\"]?"
_LIST = rf"({_LISTED}(?:(?:\s*,\s*(?:or\s+)?|\s+or\s+|\s*\|\s*){_LISTED})+)"
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_FILLERS = frozenset({"or", "and", "a", "an", "the", "of", "one", "to", "positive", "integer", "number", "unset"})
_MOST_WORDS, _LONGEST_WORD = 6, 24


def documented_words(name: str, file: str) -> Iterator[str]:
    """Words that a docstring of the file lists right behind the variable's name, before a colon or the line's end."""
    begin = rf"\s*`{{0,2}}{re.escape(name)}`{{0,2}}\s*[:=]?\s+"
    for text, _ in _docstrings_that_name(name, file):
        for line in text.splitlines():
            listed = re.match(rf"{begin}{_LIST}\.?\s*$", line) or re.match(rf"{begin}([^:]+):", line)
            words = [] if listed is None else _WORD.findall(listed.group(1))
            if len(words) <= _MOST_WORDS + len(_FILLERS):
                yield from (word for word in words if word not in _FILLERS and len(word) <= _LONGEST_WORD)


def listed_words(sentence: str) -> list[str]:
    """The words of which an error says that a value must be one: `mode must be one of 'loop', 'mask' or 'sdpa'`."""
    said = re.split(r"\W+(?:got|but|not)\b", sentence)[0]
    listed = re.search(rf"\b(?:one of|among|must be|expected|choose from|in)\b\W*{_LIST}", said)
    words = [] if listed is None else _WORD.findall(listed.group(1))
    return [word for word in words if word not in _FILLERS and len(word) <= _LONGEST_WORD][:_MOST_WORDS]


def held_words(around: ast.AST, file: str) -> dict[str, None]:
    """Words in tuples, lists and sets that names of the module hold and something round there is looked up in."""
    module = next((each for each in list(sys.modules.values()) if getattr(each, "__file__", None) == file), None)
    found: dict[str, None] = {}
    for node in ast.walk(around) if module is not None else ():
        if isinstance(node, ast.Compare):
            for each in node.comparators:
                held = getattr(module, each.id, None) if isinstance(each, ast.Name) else None
                if isinstance(held, (tuple, list, set, frozenset, dict)):
                    found |= dict.fromkeys(word for word in held if isinstance(word, str))
    return found


def said_to_be_read_at_every_call(name: str, packages: Sequence[str]) -> Place | None:
    """The docstring that names the variable and says that what it names is read at every call; None where none does."""
    for file in loaded_files(packages).values():
        for text, line in _docstrings_that_name(name, file):
            if re.search(rf"\b{re.escape(name)}\b", text) and _AT_EVERY_CALL.search(text):
                return Place(file=file, line=line)
    return None


def _docstrings_that_name(name: str, file: str) -> Iterator[tuple[str, int]]:
    """The docstrings of a file, each with its line; none of a file that does not name the variable."""
    source = "".join(linecache.getlines(file))
    if name not in source:
        return
    tree = attempt(lambda: ast.parse(source))
    for node in () if isinstance(tree, Caught) else ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node, clean=False)
            if text:
                yield text, getattr(node.body[0], "lineno", 1)

"""Words by which a source says that its layers share their parameters, and not that something else is shared."""

import inspect
import io
import linecache
import re
import textwrap
import tokenize
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.frames import Line

# Words of a name, and with a capital inside one: of layers that run again and again, and of anything that is shared.
_AGAIN = re.compile(
    r"(?<![a-z])(?i:recurren\w*|universal|recycl\w+|unroll\w*|loop(s|ed|ing)|albert|iterat\w+(?! (over|through)\b)"
    r"|cyclic|over and over|repeatedly"
    r"|the same (\w+ ){0,2}(weights?|parameters?|layer|block|module|cell|network|update|step|map|stage))(?![a-z])"
    r"|Recurren|Universal|Recycl|Unroll|Looped|Albert|Iterat|Cyclic"
)
_SHARED = re.compile(
    r"(?<![a-z])(?i:shar(e|es|ed|ing)|ties?|tied|tying|reus\w+)(?![a-z])|Shar(e|es|ed|ing)|Tied|Tying|Reus|共享|共用"
)
_BESIDE = re.compile(  # at the line itself
    r"(?<![a-z])(same|(one|single) (and|block|layer|module|set|cell|instance|network))(?![a-z])"
    r"(?!.*\b(per|for (each|every))\b)",
    re.IGNORECASE,
)
_ENDS = r"\b(output|final|last|first|input|softmax|embedding)[ _-](layer|projection|head|weight|matrix|proj)s?\b"
_OF_ANOTHER = re.compile(  # what else a model shares
    rf"{_ENDS}|embed|(?<![a-z])(emb|wte|wpe)(?![a-z])|vocab|logits?(?![a-z])|lm_?head|classifier|tied?_weights"
    r"|(?<![a-z])(kv|cache|keys?|values?|rotary|memory|storage|tensors?|buffers?|heads?|experts?|masks?|tables?|biase?s?"
    r"|positions?|positional|dataset|loader|batch(es)?)(?![a-z])",
    re.IGNORECASE,
)
_LAYER = r"(layer|block|cell|module|stack|network)s?"
_OF_LAYERS = re.compile(
    r"(?<![a-z])(layers|blocks|depths?|levels|stacks?|stages)(?![a-z])"
    rf"|\b(each|every|all|one|single|same) {_LAYER}\b|\b(shar|tie|reus)\w+ (\w+ ){{0,2}}{_LAYER}\b"
    rf"|\b{_LAYER} (\w+ ){{0,3}}(shar|tie|reus)",
    re.IGNORECASE,
)
_SENTENCES = re.compile(r"(?<=[.;:])\s|\n\s*\n")
_BETWEEN = frozenset({tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING})


@dataclass(frozen=True)
class _Remark:
    """A comment, a sentence or a name, the statement that it stands beside, and that one's first and last line."""

    text: str
    beside: str = ""
    first: int = 0
    last: int = -1


def is_meant(
    holder: nn.Module, path: str, kinds: Sequence[type], lines: Collection[Line] = (), names: Collection[str] = ()
) -> bool:
    """Whether the class of what holds the container at `path`, or the code around these lines, says that layers share.

    What is said of embeddings or an output layer is not said of layers, unless it names these as well. `kinds` are the
    classes of the container and of the layer, `names` what that is called where it is multiplied.
    """
    words = path.split(".")
    own = {kinds[-1].__name__, *names, *[each for each in words if each and not each.isdigit()][-1:]}
    said = [*map(_Remark, (*words, type(holder).__name__, kinds[0].__name__, *vars(holder)))]
    said += [each for text, first in _sources(holder, lines) for each in _remarks(text, first)]
    numbers = {each.line for each in lines}
    return any(_says_it(each, own, numbers) for each in said)


def _says_it(remark: _Remark, own: Collection[str], lines: Iterable[int]) -> bool:
    text = remark.text
    if _AGAIN.search(text):
        return True
    if any(remark.first <= line <= remark.last for line in lines):
        return bool(_SHARED.search(text)) or (" " in text and bool(_BESIDE.search(text)))
    if not _SHARED.search(text):
        return False
    whole = f"{text} {remark.beside}"
    names_it = any(re.search(rf"(?<![a-z]){re.escape(each)}(?![a-z])", whole) for each in own)
    return names_it or bool(_OF_LAYERS.search(re.sub(_ENDS, "", text))) or not _OF_ANOTHER.search(whole)


def _sources(holder: nn.Module, lines: Iterable[Line]) -> Iterator[tuple[str, int]]:
    """The source of the holder's class, and of what stands at the margin around each line; with its first line."""
    kind = type(holder)
    if not kind.__module__.startswith("torch."):
        read = attempt(lambda: inspect.getsourcelines(kind))
        if not isinstance(read, Caught):
            yield "".join(read[0]), read[1]
    for file in dict.fromkeys(line.file for line in lines):
        text = linecache.getlines(file)
        for first, last in sorted({_around(text, line.line) for line in lines if line.file == file}):
            yield "".join(text[first - 1 : last]), first


def _around(text: list[str], line: int) -> tuple[int, int]:
    """The first and last line of the block at the margin that a line is in, and the comments above it."""
    first = last = min(line, len(text))
    while first > 1 and not _is_at_margin(text[first - 1]):
        first -= 1
    while first > 1 and text[first - 2].startswith(("#", "@")):
        first -= 1
    while last < len(text) and not _is_at_margin(text[last]):
        last += 1
    return first, last


def _is_at_margin(line: str) -> bool:
    return bool(line.strip()) and line[0] not in " \t)]}#"


def _remarks(source: str, first: int) -> Iterator[_Remark]:
    """What a source says, each beside its statement: comments beside the one that they stand on or above."""
    read = attempt(lambda: list(tokenize.generate_tokens(io.StringIO(textwrap.dedent(source)).readline)))
    if isinstance(read, Caught):
        yield _Remark(source)
        return
    words: list[tokenize.TokenInfo] = []
    for token in read:
        if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
            yield from _of_statement(words, first - 1)
            words = []
        elif token.type not in _BETWEEN:
            words.append(token)


def _of_statement(words: list[tokenize.TokenInfo], above: int) -> Iterator[_Remark]:
    code = [each for each in words if each.type != tokenize.COMMENT]
    beside = " ".join(each.string for each in code)
    first, last = (code[0].start[0] + above, code[-1].end[0] + above) if code else (0, -1)
    comment = " ".join(each.string.lstrip("# ") for each in words if each.type == tokenize.COMMENT)
    if len(code) == 1 and code[0].type == tokenize.STRING:  # a docstring
        yield from (_Remark(" ".join(each.split())) for each in _SENTENCES.split(code[0].string))
        code = []
    texts = [*_SENTENCES.split(comment), *(each.string for each in code if each.type != tokenize.OP)]
    yield from (_Remark(" ".join(each.split()), beside, first, last) for each in texts if each.strip())

"""What a word that is not allowed may have meant: the same under another name, or a slip of the fingers."""

import difflib
import re
from collections.abc import Mapping, Sequence

from nsa_doctor.core.errors import OptionError

_LIKENESS = 0.7  # below it, words are other words: "tpu" is no slip for "cpu", nor "uniform" for "normal"
_SHORTEST_BEGINNING = 3
_OTHER_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("gpu", "nvidia"), "cuda"),
    **dict.fromkeys(("fp16", "f16", "half"), "float16"),
    **dict.fromkeys(("fp32", "f32", "float", "single"), "float32"),
    **dict.fromkeys(("fp64", "f64", "double"), "float64"),
    "bf16": "bfloat16",
    **dict.fromkeys(("fast", "short"), "smoke"),
    **dict.fromkeys(("all", "complete", "deep", "long", "slow"), "full"),
    **dict.fromkeys(("gaussian", "randn", "random"), "normal"),
    **dict.fromkeys(("embeds", "floats", "hidden"), "embeddings"),
    "ids": "tokens",
    **dict.fromkeys(("encoder", "noncausal", "non-causal"), "bidirectional"),
    **dict.fromkeys(("plain", "text", "tty", "txt"), "terminal"),
    "markdown": "md",
    "xml": "junit",
    **dict.fromkeys(("actions", "annotations", "gh"), "github"),
}


def nearest(word: str, allowed: Sequence[str]) -> str:
    """`did you mean cuda`; all that is allowed where nothing suggests itself."""
    meant = _meant(word.strip().lower().removeprefix("torch."), allowed)
    return f"allowed are {', '.join(allowed)}" if meant is None else f"did you mean {meant}"


def _meant(word: str, allowed: Sequence[str]) -> str | None:
    word = word.partition(":")[0]  # cuda:0
    if _OTHER_NAMES.get(word) in allowed:
        return _OTHER_NAMES[word]
    for is_meant in (
        lambda each: each.lower() == word,
        lambda each: len(word) >= _SHORTEST_BEGINNING and each.lower().startswith(word),
        lambda each: sorted(each.lower()) == sorted(word),
    ):
        found = [each for each in allowed if is_meant(each)]
        if len(found) == 1:
            return found[0]
    close = difflib.get_close_matches(word, allowed, n=len(allowed), cutoff=_LIKENESS) if allowed else []
    return next((each for each in close if not re.search(r"\d", word) or _digits(each) == _digits(word)), None)


def _digits(word: str) -> str:
    return re.sub(r"\D", "", word)


def one_of(option: str, word: str, allowed: Sequence[str]) -> str:
    """Check a word that is one of few; raises OptionError."""
    if word in allowed:
        return word
    raise OptionError(f"{option} cannot be {word!r}: {nearest(word, allowed)}")

"""What a subject is meant to be where it is not what most are: words that its owner declares."""

from collections.abc import Iterable
from enum import StrEnum

from nsa_doctor.core.nearest import one_of


class Declaration(StrEnum):
    """A word for `--spec`; a check names in `unless` those under which what it looks for is meant."""

    BIDIRECTIONAL = "bidirectional"
    """Outputs depend on later tokens, as an encoder's do."""


def declarations(option: str, words: Iterable[str]) -> tuple[str, ...]:
    """The words, each once; raises OptionError for one that is none, with the nearest."""
    allowed = [word.value for word in Declaration]
    return tuple(dict.fromkeys(one_of(option, word.strip(), allowed) for word in words))

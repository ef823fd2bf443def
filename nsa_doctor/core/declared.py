"""What a subject is meant to be where it is not what most are: words that its owner declares."""

from collections.abc import Iterable
from enum import StrEnum

from nsa_doctor.core.errors import OptionError
from nsa_doctor.core.nearest import nearest, one_of
from nsa_doctor.core.text import joined


class Declaration(StrEnum):
    """A word for `--spec`; a check names in `unless` those under which what it looks for is meant."""

    BIDIRECTIONAL = "bidirectional"
    """Outputs depend on later tokens, as an encoder's do."""
    STOCHASTIC = "stochastic"
    """Outputs depend on random numbers in `eval()` too, as samples do: the same where they are seeded alike."""


def declarations(option: str, words: Iterable[str]) -> tuple[str, ...]:
    """The words, each once; raises OptionError for one that is none, with the nearest.

    `causal` is what a module is without any.
    """
    allowed = [word.value for word in Declaration]
    said = dict.fromkeys(word.strip() for word in words)
    if about_functions := next((word for word in said if "=" in word or word == "full"), None):
        raise OptionError(f"{option} {about_functions} is for functions (fn:…): of a module, {nearest('', allowed)}")
    if "causal" in said and len(said) > 1:
        raise OptionError(f"{option} cannot be 'causal' beside {joined([word for word in said if word != 'causal'])}")
    return tuple(one_of(option, word, allowed) for word in said if word != "causal")

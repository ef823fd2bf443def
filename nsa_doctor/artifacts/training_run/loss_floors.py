"""How low the loss of a training run can be, where its source does not tell its entropy.

Text. The losses of a first pass over data, summed up, are the length of a code for it (each batch is predicted before
it is learnt), so no model that begins with nothing can beat the best compressors on so much text. They need 1.2 nats a
byte for the first megabyte of English and 0.8 for 100 MB; language models of any size stay above 0.5. A token of a
large vocabulary stands for about four bytes. The floors below leave a third of it. They hold for collections so
large that no run comes round to a text twice: a small file can be learnt by heart, one that repeats itself foretold, so
of other files nothing is said. Nor of a model that was trained before.
"""

import math
import re

from nsa_doctor.artifacts.training_run.declared import Declared
from nsa_doctor.artifacts.training_run.trends import Series, median

_VAST = re.compile(
    r"(?:^|[^a-z0-9])(fineweb(?:[_-]edu)?|openwebtext\d?|owt|c4|mc4|the[_-]?pile|pile|slimpajama|redpajama|dclm|refinedweb|cosmopedia|oscar)(?![a-z])"
)
_LARGEST_BYTES = 1024  # symbols of a vocabulary of bytes or characters
_OF_A_BYTE = ((1e7, 0.8), (1e9, 0.65), (math.inf, 0.45))  # tokens seen up to, nats
_OF_A_TOKEN = ((1e7, 2.5), (1e9, 2.0), (math.inf, 1.5))
_UNTRAINED = 0.75  # of a guess: what a model that knows nothing loses at least at its first steps


def floor_of_text(settings: Declared, losses: Series) -> float | None:
    """Nats per token; None where the data is not known to be vast, or the model knew something at the first step."""
    if not _VAST.search(settings.dataset) or not losses or (settings.guess is None and losses.values[0] < 4):
        return None
    first = median(losses.values[:3])
    guess = settings.guess if settings.guess is not None else first
    if losses.steps[0] > 20 or (first < _UNTRAINED * min(guess, math.log(50_000)) and first < 4.5):
        return None
    is_of_bytes = settings.tokenizer == "byte" or (
        first < 6.5 if settings.vocabulary is None else settings.vocabulary <= _LARGEST_BYTES
    )
    seen = settings.tokens_per_step * losses.steps[-1] if settings.tokens_per_step else math.inf
    return next(floor for most, floor in (_OF_A_BYTE if is_of_bytes else _OF_A_TOKEN) if seen <= most)

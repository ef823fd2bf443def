"""JSON from a file, strict and bounded: no key twice, no number that is none, and no depth that ends the process."""

import json
from collections import Counter
from typing import Any, NoReturn

from nsa_doctor.artifacts.checkpoint.fault import corrupt, quoted


def read_json(data: bytes, where: str) -> dict[str, Any]:
    """The object; a FaultError says what is wrong with it."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise corrupt(where, f"it has {quoted(twice)} twice, and readers differ over which counts")
        return made

    def refuse(word: str) -> NoReturn:
        raise corrupt(where, f"{word} is no number of JSON")

    try:
        made = json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except UnicodeDecodeError:
        raise corrupt(where, "it is no text") from None
    except RecursionError:
        raise corrupt(where, "it nests too deep") from None
    except ValueError as error:  # a broken document, or a number of thousands of digits
        reason = getattr(error, "msg", "a number in it is too long")
        raise corrupt(where, f"it is no JSON ({reason})") from None
    if not isinstance(made, dict):
        raise corrupt(where, "it is no JSON object")
    return made

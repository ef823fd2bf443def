"""What each check usually costs and finds, so that an examination of little time begins with the most telling."""

import json
from functools import cache
from importlib.resources import files

_UNKNOWN_SHARE = 0.002  # about what half of the checks take less than
_AS_IF_FOUND = 0.5  # of a check that found nothing yet: it still may


def cost_of_a_finding(code: str) -> float:
    """The check's share of the time of an examination for each finding that it had in usual_costs.json."""
    share, found = _table().get(code, (_UNKNOWN_SHARE, 0))
    return share / (found + _AS_IF_FOUND)


@cache
def _table() -> dict[str, tuple[float, int]]:
    text = files("nsa_doctor.core").joinpath("usual_costs.json").read_text(encoding="utf-8")
    return {code: (float(share), int(found)) for code, (share, found) in json.loads(text)["checks"].items()}

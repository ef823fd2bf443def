"""The families of checks, in the order in which reports tell of them, each with its title."""

import re
from collections.abc import Iterable, Mapping

FAMILIES: Mapping[str, str] = {
    "ENV": "environment and routing",
    "FWD": "forward",
    "SEL": "selection",
    "FUN": "attention functions",
    "GRD": "gradients",
    "NAN": "finite values",
    "GAT": "gates",
    "DEC": "decoding",
    "HNG": "hangs and waits",
    "PRF": "time and memory",
    "CKP": "checkpoints",
    "DAT": "data",
    "TRN": "training runs",
    "DST": "several processes",
}
_CODE = re.compile(r"[A-Z]{3}\d{3}")


def is_code(text: str) -> bool:
    """Whether it is a check's code, not a target of fuzz."""
    return _CODE.fullmatch(text) is not None


def family_of(code: str) -> tuple[str, str]:
    """The family of a check's code and its title; of a target of fuzz, `fuzz`."""
    family = code[:3] if is_code(code) else code.partition(" ")[0] or "other"
    return family, FAMILIES.get(family, "")


def in_order(families: Iterable[str]) -> list[str]:
    """Each of these families once: ours in our order, then those of other packages."""
    known = list(FAMILIES)
    return sorted(set(families), key=lambda family: (known.index(family) if family in known else len(known), family))

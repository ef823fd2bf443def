"""What a shell may offer for the value of an option; nothing is imported or run for it but what `--help` needs."""

from collections.abc import Callable, Iterable

from nsa_doctor.core.check import PROFILES
from nsa_doctor.core.families import family_of
from nsa_doctor.core.like import CONVENTIONS
from nsa_doctor.core.measurement import DTYPES
from nsa_doctor.render.formats import FORMATS


def words(allowed: Iterable[str]) -> Callable[[], list[str]]:
    """These words, of which the shell picks those that begin as what was typed."""
    listed = list(allowed)
    return lambda: listed


def codes() -> list[tuple[str, str]]:
    """Codes of all checks, each with its name."""
    from nsa_doctor.core import registry

    return [(manual.code, manual.name) for manual in registry.manuals().values()]


def listed_codes(incomplete: str) -> list[tuple[str, str]]:
    """Codes and families, each behind what is listed already and its comma."""
    before = incomplete.rpartition(",")[0]
    listed = f"{before}," if before else ""
    families = dict.fromkeys(family_of(code)[0] for code, _ in codes())
    return [*((f"{listed}{code}", name) for code, name in codes()), *((f"{listed}{each}", "") for each in families)]


def policies() -> list[str]:
    """Policies that come with nsa-doctor."""
    from nsa_doctor.core.shipped import shipped

    return sorted(shipped("policies"))


DEVICES = words(("cpu", "cuda"))
INPUTS = words(("embeddings", "tokens"))
OF_PROFILES = words(PROFILES)
OF_DTYPES = words(DTYPES)
OF_FORMATS = words(FORMATS)
OF_CONVENTIONS = words(CONVENTIONS)

"""Policy files: which checks and limits a verdict requires, each with its reason."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from nsa.plain_yaml import read_plain_yaml
from nsa.strict import ConfigError, Name, Strict, nearest
from nsa_doctor.core import registry
from nsa_doctor.core.check import PROFILES, Kind
from nsa_doctor.core.measures import MEASURES
from nsa_doctor.core.shipped import shipped


def _measure(name: str) -> str:
    if name not in MEASURES:
        raise ValueError(f"must name something measured: {nearest(name, MEASURES)}")
    return name


def _codes(words: tuple[str, ...]) -> tuple[str, ...]:
    known = registry.manuals()
    for word in words:
        if not word or not any(code.startswith(word) for code in known):
            families = sorted({code[:3] for code in known})
            raise ValueError(f"must name checks or families: no check starts with {word!r}; {nearest(word, families)}")
    return words


Codes = Annotated[tuple[Name, ...], Field(min_length=1, strict=False), AfterValidator(_codes)]


class Requirement(Strict):
    """Checks that have to pass."""

    codes: Codes = Field(description="codes or their beginnings, such as [FWD, NAN]")
    because: Name = Field(description="why a verdict needs them, in a sentence")
    where_offered: bool = Field(
        default=False, description="may be skipped where the subject lacks the part, or no checkpoint is given"
    )


class Limit(Strict):
    """One number and what it may be."""

    measure: Annotated[Name, AfterValidator(_measure)] = Field(description="what is measured")
    at_least: float | None = Field(default=None, description="the least it may be")
    at_most: float | None = Field(default=None, description="the most it may be")
    device: Annotated[str, Field(max_length=100)] = Field(
        default="", description="only on devices whose name holds this text"
    )
    because: Name = Field(description="why, in a sentence")

    @model_validator(mode="after")
    def _check_bounds(self) -> "Limit":
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"{self.measure} must have at_least or at_most, one of them")
        return self

    @property
    def bound(self) -> float:
        """The number itself."""
        bound = self.at_most if self.at_least is None else self.at_least
        assert bound is not None
        return bound

    def keeps(self, value: float) -> bool:
        """Whether the value is within it; NaN never is."""
        return value >= self.bound if self.at_least is not None else value <= self.bound


class Acceptance(Strict):
    """A finding that is known and does not stand in the way, with the reason."""

    fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{8,64}$")] = Field(description="as the report prints it")
    because: Name = Field(description="why it may stay, in a sentence")


class Policy(Strict):
    """What a verdict requires."""

    name: Name = Field(description="how reports call it")
    profile: Literal["smoke", "quick", "full"] = Field(default="quick", description="how thoroughly checks are run")
    require: Annotated[tuple[Requirement, ...], Field(strict=False)] = Field(
        default=(), description="checks that have to pass"
    )
    limits: Annotated[tuple[Limit, ...], Field(strict=False)] = Field(default=(), description="numbers to keep")
    accept: Annotated[tuple[Acceptance, ...], Field(strict=False)] = Field(
        default=(), description="known findings that may stay"
    )
    digest: str = Field(default="", description="sha256 of the file; filled in when it is read")

    @model_validator(mode="after")
    def _check_emptiness(self) -> "Policy":
        if not self.require and not self.limits:
            raise ValueError("require is missing: a policy that requires nothing would let everything through")
        return self

    @property
    def codes(self) -> tuple[str, ...]:
        """Every check it requires: those of a named family that are part of the profile, and all named in full."""
        return tuple(entry.manual.code for entry in self.checks)

    @property
    def checks(self) -> Sequence[registry.Entry]:
        """The entries of these checks, of whatever they examine."""
        deepest, words = PROFILES.index(self.profile), self.words
        return [
            entry
            for code, entry in registry.entries().items()
            if code.startswith(words) and (code in words or PROFILES.index(entry.profile) <= deepest)
        ]

    @property
    def words(self) -> tuple[str, ...]:
        """Codes and beginnings of codes as the file names them."""
        return tuple(dict.fromkeys(word for requirement in self.require for word in requirement.codes))

    def requirement(self, code: str) -> Requirement | None:
        """What requires this check; the strictest where several do."""
        asking = [each for each in self.require if code.startswith(each.codes)]
        return min(asking, key=lambda each: each.where_offered, default=None)

    def with_given(self, kinds: Iterable[Kind]) -> "Policy":
        """The policy, and for each kind of thing that was given and of which it says nothing, its own checks.

        What a user hands over is judged: no policy can look away from it, nor from what keeps its own checks from an
        answer. Limits are about training runs.
        """
        deepest, codes = PROFILES.index(self.profile), set(self.codes)
        added = []
        for kind in kinds:
            known = [entry for entry in registry.of_kind(kind) if PROFILES.index(entry.profile) <= deepest]
            if self._mentions(kind):
                blocking = tuple(word for entry in known if entry.manual.code in codes for word in entry.blocked_by)
                known = [entry for entry in known if blocking and entry.manual.code.startswith(blocking)]
            names = tuple(entry.manual.code for entry in known)
            if set(names) - codes:
                because = f"--{kind} was given, and what is given is judged"
                added.append(Requirement(codes=names, because=because, where_offered=True))
        return self.model_copy(update={"require": (*self.require, *added)})

    def _mentions(self, kind: Kind) -> bool:
        """Whether it says something of that kind: a family that has checks of modules too is required of modules."""
        entries = registry.entries()
        kinds = [{entry.examines for code, entry in entries.items() if code.startswith(word)} for word in self.words]
        return (kind == "run" and bool(self.limits)) or any(kind in each and "module" not in each for each in kinds)


def load_policy(source: str) -> Policy:
    """Read a file, or a built-in policy by its name; raises ConfigError with one sentence."""
    known = shipped("policies")
    path = known.get(source) or known.get(_builtin_name(source), Path(source))
    try:
        document = read_plain_yaml(path)
    except ValueError as error:
        raise ConfigError(f"{source!r}: {error}; built in are {', '.join(known)}") from None
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ConfigError(f"{source!r}: a policy file is a mapping with the keys name, require and limits")
    if "digest" in document:
        raise ConfigError(f"{source!r}: digest is not for a file to say")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    try:
        return Policy(**{"name": path.stem, **document, "digest": digest})
    except ConfigError as error:
        raise ConfigError(f"{source!r}: {error}") from None


def _builtin_name(source: str) -> str:
    """`configs/policies/NAME.yaml` also works away from a checkout, and so does the folder's former name, gates."""
    path = Path(source)
    is_away = (
        path.parent in (Path("configs/policies"), Path("configs/gates"))
        and path.suffix == ".yaml"
        and not path.exists()
    )
    return path.stem if is_away else ""

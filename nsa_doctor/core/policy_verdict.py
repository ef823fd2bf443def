"""What a policy concludes from a report: the decision, why, and what it rests on."""

from dataclasses import dataclass
from typing import Literal

from nsa_doctor.core.power import Power

DecisionWord = Literal["GO", "NO-GO", "UNKNOWN"]
LimitStatus = Literal["kept", "broken", "not measured", "other device"]


@dataclass(frozen=True, kw_only=True)
class Required:
    """One required check: how it ended in the eyes of the policy, and why the policy requires it."""

    code: str
    verdict: str
    because: str
    stands: Literal["passed", "accepted", "not offered", "failed", "unknown"]
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class LimitResult:
    """One limit and the number that was held against it; `measured` is None where there is none."""

    measure: str
    title: str
    unit: str
    bound: str
    measured: float | None
    kept: LimitStatus
    because: str
    device: str = ""


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """A finding that is known and may stay, with the reason."""

    fingerprint: str
    code: str
    because: str


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Fingerprints against an earlier report's."""

    report: str
    new: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PolicyVerdict:
    """The verdict of a policy; `why` is what speaks against a GO, the gravest first, or what speaks for it.

    `power` says what it rests on.
    """

    decision: DecisionWord
    gate: str
    gate_digest: str
    why: tuple[str, ...]
    required: tuple[Required, ...] = ()
    limits: tuple[LimitResult, ...] = ()
    accepted: tuple[Accepted, ...] = ()
    baseline: Compared | None = None
    again: str = ""
    power: Power | None = None

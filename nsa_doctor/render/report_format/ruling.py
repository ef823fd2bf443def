"""What a report holds of a policy: its verdict, what that rests on, and what the policy notices of mutants."""

from typing import Literal

from pydantic import Field

from nsa_doctor.core import policy_verdict, power, proof
from nsa_doctor.core.policy_verdict import DecisionWord, LimitStatus
from nsa_doctor.core.proof import Fate
from nsa_doctor.render.report_format.part import Listed, Maybe, Named, Number, Part, optional


class Required(Part):
    """One required check, and how it ended in the eyes of the policy."""

    _record = policy_verdict.Required
    code: str = Field(description="Code of the check.")
    verdict: str = Field(description="How it ended: PASS, FAIL, SKIP, CRASH or TIMEOUT; absent without a result.")
    because: str = Field(description="Why the policy requires it.")
    stands: Literal["passed", "accepted", "not offered", "failed", "unknown"]
    reason: str = Field(description="Why it was skipped, crashed or ran out of time.")


class LimitResult(Part):
    """One limit of the policy, and the number that is compared with it."""

    _record = policy_verdict.LimitResult
    measure: str = Field(description="What is measured, as a policy file names it.")
    title: str = Field(description="What is measured, in words.")
    unit: str = Field(description="Unit of both numbers.")
    bound: str = Field(description="The limit, in words.")
    measured: Maybe[Number] = Field(description="Null where nothing was measured.")
    kept: LimitStatus
    because: str = Field(description="Why the policy sets it.")
    device: str = Field(description="Devices that it is for; empty for all.")


class Accepted(Part):
    """A finding that is known and may stay."""

    _record = policy_verdict.Accepted
    fingerprint: str
    code: str = Field(description="Code of its check.")
    because: str = Field(description="Why it may stay.")


class Compared(Part):
    """Fingerprints of findings, compared with those of an earlier report."""

    _record = policy_verdict.Compared
    report: str = Field(description="The earlier report.")
    new: Listed[str]
    fixed: Listed[str]
    unchanged: Listed[str]


class FamilyRecall(Part):
    """Known bugs found; low and high bound the rate with 95 % confidence."""

    _record = power.FamilyRecall
    family: str
    hits: int
    of: int = Field(description="0 where it was never measured.")
    low: Number
    high: Number
    measured: str = optional("On what, with which doctor and when, where by itself.")


class Power(Part):
    """What the verdict rests on."""

    _record = power.Power
    checks: int = Field(description="Checks that ended with a result.")
    calls: int = Field(description="Calls of the subject.")
    lengths: Listed[int]
    dtypes: Listed[str]
    modes: Listed[str]
    batch_sizes: Listed[int]
    seeds: Listed[int]
    device: str
    recall: Listed[FamilyRecall] = Field(description="Of all, and of each family of checks that was examined.")
    doctor: str = Field(description="The doctor that recall was measured with.")
    measured_on: str = Field(description="A date, or nothing where it is not known.")
    not_examined: Listed[str] = Field(description="What no check looked at.")
    cut_short: Listed[str] = Field(description="What was not reached, and why.")


class PolicyVerdict(Part):
    """What a policy makes of the report."""

    _record = policy_verdict.PolicyVerdict
    decision: DecisionWord
    gate: str = Field(description="Name of the policy.")
    gate_digest: str = Field(description="SHA-256 of the policy file.")
    why: Listed[str] = Field(description="What speaks against a GO, the gravest first, or for it.")
    required: Listed[Required]
    limits: Listed[LimitResult]
    accepted: Listed[Accepted]
    baseline: Maybe[Compared] = Field(description="Null without an earlier report.")
    again: str = Field(description="One line to paste that reproduces the verdict.")
    power: Maybe[Power] = optional("Absent in reports of an earlier nsa-doctor.")


class MutantFate(Part):
    """One small change of a line: what it changes in what is computed, and who noticed."""

    _record = proof.MutantFate
    file: str
    line: int
    kind: str = Field(description="What kind of change.")
    before: str = Field(description="The code before the change.")
    after: str = Field(description="The code after it.")
    fate: Fate
    changed: str = Field(description="What is computed differently, where and by how much.")
    by: str = Field(description="The check that noticed.")
    seconds: Number


class Proof(Part):
    """What the policy notices of mutants of the subject's own source; noticed, missed and unknown ones count."""

    _record = proof.Proof
    asked: int = Field(description="Mutants asked for.")
    seed: int = Field(description="Seed of the draw.")
    candidates: int = Field(description="Mutants to draw from.")
    files: Listed[str] = Field(description="Files of source that are mutated.")
    lengths: Listed[int]
    dtype: str
    modes: Listed[str]
    mutants: Listed[MutantFate]
    reason: str = Field(description="Why there are fewer than asked for.")
    seconds: Number
    noticed_low: Number = Field(description="Lower bound of the share noticed, with 95 % confidence.")
    noticed_high: Number = Field(description="Upper bound of it.")
    counts: Named[int] = optional("Mutants by fate; absent in reports of an earlier nsa-doctor.")

"""What a policy file asks for: which checks, by which of its requirements, which limits, and from which file."""

import hashlib
from pathlib import Path

import pytest

from nsa.strict import ConfigError
from nsa_doctor.core import registry
from nsa_doctor.core.check import PROFILES
from nsa_doctor.policy.policy import Acceptance, Limit, Policy, Requirement, load_policy

TEXT = "require: [{codes: [FWD101], because: it matters}]\n"
BY_PROFILE = {
    profile: [code for code, entry in registry.entries().items() if entry.profile == profile] for profile in PROFILES
}


def gate(*words: str, **parts) -> Policy:
    return Policy(**{"name": "test", "require": [{"codes": list(words), "because": "x"}], **parts})


def test_a_gate_says_little_to_mean_much() -> None:
    least = gate("FWD101")
    assert (least.profile, least.limits, least.accept, least.digest) == ("quick", (), (), "")
    assert least.require == (Requirement(codes=("FWD101",), because="x", where_offered=False),)
    limit = Limit(measure="steps", at_least=1.0, because="x")
    assert (limit.at_most, limit.device) == (None, "")


@pytest.mark.parametrize("profile", PROFILES)
def test_a_family_is_what_the_profile_has_of_it(profile: str) -> None:
    allowed = {code for each in PROFILES[: PROFILES.index(profile) + 1] for code in BY_PROFILE[each]}
    assert gate("FWD", "HNG", profile=profile).codes == tuple(
        code for code in registry.entries() if code.startswith(("FWD", "HNG")) and code in allowed
    )


def test_a_check_named_in_full_is_part_of_every_profile() -> None:
    deep, short = BY_PROFILE["quick"][0], BY_PROFILE["smoke"][0]
    assert gate(deep, short, profile="smoke").codes == tuple(sorted((deep, short)))
    assert deep not in gate(deep[:5], short, profile="smoke").codes


def test_words_are_listed_once_in_their_order() -> None:
    asked = [{"codes": ["SEL", "FWD"], "because": "x"}, {"codes": ["FWD", "NAN101", "SEL"], "because": "y"}]
    assert Policy(name="test", require=asked).words == ("SEL", "FWD", "NAN101")


def test_the_strictest_of_several_requirements_counts_in_any_order() -> None:
    strict = {"codes": ["FWD"], "because": "strict"}
    mild = {"codes": ["FWD101"], "because": "mild", "where_offered": True}
    for asked in ([strict, mild], [mild, strict]):
        found = Policy(name="test", require=asked)
        assert found.requirement("FWD101").because == "strict"
        assert found.requirement("FWD102").because == "strict"
        assert found.requirement("NAN101") is None


@pytest.mark.parametrize(
    ("bound", "kept", "broken"),
    [({"at_least": 2.0}, (2.0, 2.5, float("inf")), (1.9,)), ({"at_most": 2.0}, (2.0, -1.0), (2.1, float("inf")))],
    ids=["at least", "at most"],
)
def test_a_limit_keeps_its_bound_and_what_lies_within(bound: dict[str, float], kept: tuple, broken: tuple) -> None:
    limit = Limit(measure="steps", because="x", **bound)
    assert limit.bound == 2.0
    assert [limit.keeps(value) for value in (*kept, *broken)] == [True] * len(kept) + [False] * len(broken)
    assert not limit.keeps(float("nan"))


@pytest.mark.parametrize("zero", ["at_least", "at_most"])
def test_a_bound_of_zero_is_a_bound(zero: str) -> None:
    limit = Limit(measure="steps", because="x", **{zero: 0.0})
    assert limit.bound == 0.0
    assert limit.keeps(0.0)


def test_limits_alone_are_a_gate() -> None:
    limits = [{"measure": "steps", "at_least": 1.0, "because": "x"}]
    assert Policy(name="test", limits=limits).codes == ()
    assert [limit.measure for limit in Policy(name="test", limits=limits).limits] == ["steps"]


REFUSED = {
    "no requirement": ({"require": []}, "require is missing: a policy that requires nothing would let everything"),
    "an empty word": ({"require": [{"codes": [""], "because": "x"}]}, "codes"),
    "no check": ({"require": [{"codes": ["FWD", "QQQ"], "because": "x"}]}, "no check starts with 'QQQ'"),
    "lower case": ({"require": [{"codes": ["fwd"], "because": "x"}]}, "no check starts with 'fwd'"),
    "no reason": ({"require": [{"codes": ["FWD"], "because": ""}]}, "because"),
    "no name": ({"name": ""}, "name"),
    "a fingerprint of 7": ({"accept": [{"fingerprint": "abcdef0", "because": "x"}]}, "fingerprint"),
    "a fingerprint of 65": ({"accept": [{"fingerprint": "a" * 65, "because": "x"}]}, "fingerprint"),
    "a long device": (
        {"limits": [{"measure": "steps", "at_least": 1, "because": "x", "device": "x" * 101}]},
        "device",
    ),
    "no bound": ({"limits": [{"measure": "steps", "because": "x"}]}, "steps must have at_least or at_most, one of"),
    "two bounds": (
        {"limits": [{"measure": "steps", "at_least": 1.0, "at_most": 2.0, "because": "x"}]},
        "steps must have at_least or at_most, one of",
    ),
    "no measure": ({"limits": [{"measure": "stebs", "at_least": 1.0, "because": "x"}]}, "did you mean steps"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_cannot_be_asked_for_is_refused(wrong: str) -> None:
    parts, complaint = REFUSED[wrong]
    with pytest.raises(ConfigError, match=complaint):
        gate("FWD101", **parts)


@pytest.mark.parametrize("fingerprint", ["abcdef01", "a" * 64])
def test_a_fingerprint_is_of_8_to_64_digits(fingerprint: str) -> None:
    assert Acceptance(fingerprint=fingerprint, because="x").fingerprint == fingerprint


def test_a_device_of_100_letters_is_one() -> None:
    assert Limit(measure="steps", at_least=1.0, because="x", device="x" * 100).device == "x" * 100


def test_a_file_is_a_gate_with_its_name_and_digest(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT)
    found = load_policy(str(path))
    assert (found.name, found.codes) == ("mine", ("FWD101",))
    assert found.digest == hashlib.sha256(TEXT.encode()).hexdigest()
    path.write_text(f"name: ours\n{TEXT}")
    assert load_policy(str(path)).name == "ours"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- 1", "a policy file is a mapping with the keys name, require and limits"),
        ("1: 2\n" + TEXT, "a policy file is a mapping with the keys name, require and limits"),
        ("digest: ab\n" + TEXT, "digest is not for a file to say"),
        ("{", "; built in are ci, foreign, function, production, smoke"),
        ("profile: fast\n" + TEXT, "profile"),
    ],
)
def test_a_file_that_is_no_gate_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "gate.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_policy(str(path))
    assert str(caught.value).startswith(f"{str(path)!r}: ")
    assert complaint in str(caught.value)


def test_a_built_in_gate_has_its_name_wherever_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_policy("configs/policies/ci.yaml") == load_policy("configs/gates/ci.yaml") == load_policy("ci")
    assert load_policy("ci").name == "ci"


@pytest.mark.parametrize("source", ["configs/gates/ci", "configs/gates/ci.yml", "elsewhere/ci.yaml", "ci.yaml"])
def test_no_other_path_is_a_built_in_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="built in are"):
        load_policy(source)


def test_a_file_of_that_path_comes_before_the_built_in_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "configs" / "gates" / "ci.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(TEXT)
    assert load_policy("configs/gates/ci.yaml").codes == ("FWD101",)

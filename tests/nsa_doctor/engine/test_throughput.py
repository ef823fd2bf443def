"""Floors, spreads, and the command that times: what it refuses, and what it prints. No time is asserted."""

import json
from pathlib import Path

import pytest

from nsa_doctor.core.shipped import shipped
from nsa_doctor.core.spread import relative_spread
from nsa_doctor.engine.floors import Floor, FloorsError, floors_for, judge, load_floors
from nsa_doctor.engine.throughput import samples_of
from tests.nsa_doctor.conftest import HERE

SMALL = ("--config", str(HERE / "small.yaml"), "--seq", "16,32,64", "--repeats", "3", "--quiet")


def floor(limit: float, quantity: str = "train_tokens_per_second") -> Floor:
    return Floor(quantity=quantity, limit=limit, because="a test")


@pytest.mark.parametrize(
    ("samples", "limit", "keeps"),
    [
        ([100.0, 101, 99, 100, 102], 90, True),
        ([100.0, 101, 99, 100, 102], 110, False),
        ([100.0, 160, 60, 140, 70], 90, None),
        ([100.0, 160, 60, 140, 70], 5, True),
        ([100.0, 100], 99, None),
    ],
    ids=["above", "below", "too-wide", "wide-and-far", "too-few"],
)
def test_a_floor_is_judged_by_what_the_spread_allows(samples: list[float], limit: float, keeps: bool | None) -> None:
    assert judge(samples, floor(limit)).keeps is keeps


def test_a_slowdown_is_a_ceiling() -> None:
    assert judge([70.0, 71, 69, 70], floor(60, "slowdown")).keeps is False
    assert judge([20.0, 21, 19, 20], floor(60, "slowdown")).keeps is True


def test_spread_is_half_of_the_samples_over_their_median() -> None:
    assert relative_spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)


def test_quantities_come_from_the_passes() -> None:
    row = {"length": 10, "train": [2.0, 4.0], "dense_train": [1.0, 1.0, 3.0], "decode": [0.5]}
    assert samples_of(row, "train_tokens_per_second") == [5.0, 2.5]
    assert samples_of(row, "decode_tokens_per_second") == [2.0]
    assert samples_of(row, "slowdown") == [2.0, 4.0]
    assert samples_of(row, "forward_tokens_per_second") == []


def test_every_floor_that_ships_says_why_and_where() -> None:
    known = shipped("throughput")
    assert {"cpu", "a100", "h200"} <= set(known)
    for name in known:
        assert all(len(floor.because) > 20 for floor in load_floors(name).floors)


@pytest.mark.parametrize(
    ("device_name", "device", "name"),
    [
        ("NVIDIA A100 80GB PCIe", "cuda", "a100"),
        ("NVIDIA H200", "cuda", "h200"),
        ("2 threads", "cpu", "cpu"),
        ("NVIDIA L4", "cuda", None),
    ],
)
def test_floors_are_those_of_the_device(device_name: str, device: str, name: str | None) -> None:
    found = floors_for(device_name, device)
    assert (found.name if found else None) == name


BAD_FLOORS = {
    "no-such": (None, "No such file or directory; built in are a100, cpu, h200"),
    "not-yaml": ("a: [", "line 1, column 5: "),
    "digits": ("9" * 5000, "must not hold a number of thousands of digits"),
    "nested": ("{a: " * 3000, "hundreds of levels"),
    "a-list": ("[]", "keys device and floors"),
    "no-reason": (
        "device: cpu\nfloors: [{quantity: slowdown, most: 3}]",
        "`because` is missing",
    ),
    "wrong-way": ("device: cpu\nfloors: [{quantity: slowdown, least: 3, because: x}]", "needs `most`"),
    "unknown-quantity": ("device: cpu\nfloors: [{quantity: speed, least: 3, because: x}]", "quantity must be one of"),
    "unknown-key": ("device: cpu\nfloors: [{quantity: slowdown, most: 3, because: x, lesat: 3}]", "a floor may have"),
    "endless": (
        f"device: cpu\nfloors: [{{quantity: slowdown, most: 1{'0' * 400}, because: x}}]",
        "a finite number above 0",
    ),
    "negative": ("device: cpu\nfloors: [{quantity: slowdown, most: -3, because: x}]", "above 0, got -3"),
    "no-length": ("device: cpu\nfloors: [{quantity: slowdown, most: 3, seq: x, because: x}]", "whole number, got 'x'"),
}


@pytest.mark.parametrize(("text", "words"), BAD_FLOORS.values(), ids=BAD_FLOORS.keys())
def test_bad_floors_are_refused_in_a_sentence(text: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "floors.yaml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(FloorsError, match=words):
        load_floors(str(path))


def test_floors_are_read_from_a_regular_file_alone() -> None:
    with pytest.raises(FloorsError, match="/dev/zero: must be a regular file"):
        load_floors("/dev/zero")


def test_the_command_prints_what_it_timed_beside_what_it_checked(doctor, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = doctor(
        "throughput", *SMALL[:-1], "--output", str(file), "--floors", _floors(tmp_path, "slowdown, most: 1000000")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fwd+bwd" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    report = json.loads(file.read_text(encoding="utf-8"))
    assert [row["length"] for row in report["throughput"]["rows"]] == [16, 32, 64]
    assert {"FWD101", "FWD102", "NAN101", "FWD201", "PRF401"} == {result["code"] for result in report["results"]}
    assert all(row["decode_tokens_per_second"] > 0 for row in report["throughput"]["rows"])
    assert sum(report["throughput"]["shares"].values()) == pytest.approx(1)


@pytest.mark.full
def test_below_its_floor_is_a_finding_that_says_why(doctor, tmp_path: Path) -> None:
    done = doctor("throughput", *SMALL, "--floors", _floors(tmp_path, "train_tokens_per_second, least: 1000000000000"))
    assert done.returncode == 1
    assert "PRF401 train tokens per second is" in done.stdout
    assert "because a test" in " ".join(done.stdout.split())


def test_a_subject_that_is_wrong_is_not_timed(doctor) -> None:
    done = doctor("throughput", "--subject", "faulty.forward:overflow", "--seq", "16,32", "--quiet")
    assert done.returncode == 1
    assert "not timed" in done.stdout
    assert "fwd+bwd" not in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--floors", "nowhere"), "--floors: nowhere"),
        (("--repeats", "2"), "--repeats must be from 3"),
        (("--seq", "0"), "--seq"),
    ],
)
def test_bad_options_are_usage(doctor, words: tuple[str, ...], message: str) -> None:
    done = doctor("throughput", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_env_prints_a_block_to_paste(doctor) -> None:
    done = doctor("env")
    assert done.returncode in (0, 1)
    assert {"python", "torch", "flag", "route", "effective", "misfit"} <= {
        line.split()[0] for line in done.stdout.splitlines()
    }
    assert "NSA_USE_FA2=unset" in done.stdout or "NSA_USE_FA2=" in done.stdout


def test_env_as_json_holds_flags_as_they_are(doctor) -> None:
    from tests.nsa_doctor.conftest import environment

    done = doctor("env", "--format", "json", env={**environment(), "NSA_USE_FA2": "0"})
    printed = json.loads(done.stdout)
    assert printed["flags"]["NSA_USE_FA2"] == "0"
    assert not any(printed["routes"][-1]["fa2"].values())


def _floors(folder: Path, limit: str) -> str:
    path = folder / "floors.yaml"
    path.write_text(f"device: cpu\nfloors: [{{quantity: {limit}, because: because a test}}]", encoding="utf-8")
    return str(path)

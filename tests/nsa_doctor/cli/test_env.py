"""Routing against flags, and software that cannot work together, on machines that need not be there."""

from dataclasses import replace

import pytest

from nsa_doctor.core import registry
from nsa_doctor.core.environment import Environment, Gpu, misfits
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

H200 = Gpu(name="NVIDIA H200", capability=(9, 0))
A10 = Gpu(name="NVIDIA A10", capability=(8, 6))
BLACKWELL = Gpu(name="NVIDIA RTX 5090", capability=(12, 0))
HEALTHY = Environment(
    torch="2.13.0+cu130",
    torch_cuda=(13, 0),
    driver="580.65.06",
    driver_cuda=(13, 0),
    has_nvidia_device=True,
    gpus=(H200, H200),
    architectures=("sm_80", "sm_90"),
    triton="3.6.0",
    triton_wanted="3.6.0",
    flash="2.8.3",
)
FAULTY = {
    "old-driver": ({"driver": "535.104.05", "driver_cuda": (12, 2)}, ("torch", "driver"), "serves up to CUDA 12.2"),
    "no-code": ({"gpus": (BLACKWELL,)}, ("torch", "device"), "compute capability 12.0"),
    "code-for-another-variant": ({"architectures": ("sm_80", "sm_100a")}, ("torch", "device"), "sm_80, sm_100a"),
    "newer-minor": ({"gpus": (A10,), "architectures": ("sm_89", "sm_90")}, ("torch", "device"), "8.6"),
    "torch-for-the-cpu": ({"torch": "2.13.0+cpu", "torch_cuda": None, "gpus": ()}, ("torch", "device"), "without CUDA"),
    "no-triton": ({"triton": ""}, ("triton", "torch"), "triton is not installed"),
    "other-triton": ({"triton": "2.1.0"}, ("triton", "torch"), "triton 2.1.0 is installed"),
    "flash-of-another-torch": (
        {"flash_error": "ImportError: undefined symbol: _ZN3c104impl"},
        ("flash-attn", "torch"),
        "undefined symbol",
    ),
}
FINE = {
    "all-is-well": {},
    "minor-versions-of-cuda": {"torch_cuda": (12, 8), "driver_cuda": (12, 4)},
    "newer-driver": {"torch_cuda": (12, 8)},
    "same-major": {"gpus": (A10,)},
    "intermediate-code": {"gpus": (BLACKWELL,), "architectures": ("sm_80", "compute_90")},
    "exact-variant": {"architectures": ("sm_90a",)},
    "unknown-name": {"architectures": ("gfx942",)},
    "no-gpu-at-all": {
        **{"torch": "2.13.0+cpu", "torch_cuda": None, "driver": "", "driver_cuda": None, "has_nvidia_device": False},
        **{"gpus": (), "architectures": (), "triton": "", "triton_wanted": "", "flash": ""},
    },
    "local-version": {"triton": "3.6.0+git1234"},
}


@pytest.mark.parametrize(("facts", "parts", "words"), FAULTY.values(), ids=FAULTY.keys())
def test_what_cannot_work_together_is_reported_once(facts: dict, parts: tuple[str, ...], words: str) -> None:
    (misfit,) = misfits(replace(HEALTHY, **facts))
    assert misfit.parts == parts
    assert words in misfit.message


@pytest.mark.parametrize("facts", FINE.values(), ids=FINE.keys())
def test_what_works_is_not_accused(facts: dict) -> None:
    assert list(misfits(replace(HEALTHY, **facts))) == []


def test_facts_survive_a_journey_as_json() -> None:
    import json
    from dataclasses import asdict

    assert Environment.from_json(json.loads(json.dumps(asdict(HEALTHY)))) == HEALTHY


def table(win: bool, cmp: bool, whole: bool | None = None) -> dict[str, bool]:
    return {"fa2_all_eff": win and cmp if whole is None else whole, "fa2_win_eff": win, "fa2_cmp_eff": cmp}


ROUTINGS = {
    "one-branch-ignores-the-flag": (lambda off: table(win=True, cmp=not off), "forbids flash-attn, and fa2_win_eff is"),
    "all-ignore-it": (lambda off: table(win=True, cmp=True), "fa2_all_eff, fa2_cmp_eff, fa2_win_eff are effective"),
    "summary-contradicts": (lambda off: table(win=not off, cmp=False, whole=not off), "fa2_all_eff is True beside"),
}


@pytest.mark.parametrize(("routing", "words"), ROUTINGS.values(), ids=ROUTINGS.keys())
def test_routing_against_the_flag_is_found(routing, words: str, small: Subject) -> None:
    def routes(flags):
        return routing(flags.get("NSA_USE_FA2") == "0")

    result = run_check(registry.load("ENV101"), replace(small, routes=routes))
    assert words in result.findings[0].message
    assert (result.findings[0].where.file, result.findings[0].where.function) == (__file__, "routes")


def test_a_flag_that_turns_flash_off_by_asking_for_it_is_found(small: Subject) -> None:
    def routes(flags):
        return table(win=not flags, cmp=not flags)

    result = run_check(registry.load("ENV101"), replace(small, routes=routes))
    assert "NSA_USE_FA2=1 asks for flash-attn" in result.findings[0].message


def test_obedient_routing_passes(small: Subject) -> None:
    def routes(flags):
        return table(win=flags.get("NSA_USE_FA2") != "0", cmp=False)

    assert run_check(registry.load("ENV101"), replace(small, routes=routes)).verdict is Verdict.PASS

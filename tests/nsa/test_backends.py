"""What serves each branch: every request on every kind of device, and why."""

import inspect
from importlib.machinery import ModuleSpec

import pytest
import torch

from nsa import backends
from nsa.backends import BRANCHES, Routes, route

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def no_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in backends.requested_flags():
        monkeypatch.delenv(flag, raising=False)


@pytest.fixture
def flash_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with flash-attn alone and a GPU it serves, as far as routing asks."""
    pretend(monkeypatch, {"flash_attn"})


@pytest.fixture
def triton_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with Triton alone and a GPU it serves."""
    pretend(monkeypatch, {"triton"})


def spec(name: str, origin: str | None = "/there/__init__.py") -> ModuleSpec:
    return ModuleSpec(name, None, origin=origin)


def pretend(monkeypatch: pytest.MonkeyPatch, packages: set[str], capability: tuple[int, int] = (9, 0)) -> None:
    monkeypatch.setattr(backends, "_is_installed", backends._is_installed.__wrapped__)  # not the answer of this machine
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: spec(name) if name in packages else None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)


def effective(routes: Routes) -> tuple[str, ...]:
    return tuple(getattr(routes, branch).effective for branch in BRANCHES)


@pytest.mark.parametrize("impl", ["reference", "vectorized"])
@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_plain_torch_serves_wherever_it_is_named(impl: backends.Impl, device: torch.device) -> None:
    assert effective(route(device, torch.float32, 64, impl)) == (impl,) * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_auto_takes_plain_torch_on_a_cpu_and_says_why(dtype: torch.dtype) -> None:
    routes = route(CPU, dtype, 64)
    assert effective(routes) == ("vectorized",) * 3
    assert "CUDA device, got cpu" in routes.sliding.why


def test_auto_takes_torchs_fused_window_on_cuda_without_flash(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, set())
    routes = route(CUDA, torch.bfloat16, 64)
    assert effective(routes) == ("vectorized", "vectorized", "fused")
    assert "flash-attn is not installed" in routes.sliding.why
    assert "triton is not installed" in routes.selected.why


@pytest.mark.usefixtures("triton_machine")
@pytest.mark.parametrize("impl", ["auto", "triton"])
def test_triton_serves_where_it_can(impl: backends.Impl) -> None:
    assert effective(route(CUDA, torch.bfloat16, 64, impl)) == ("triton", "triton", "triton")


def test_where_both_can_serve_flash_takes_what_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {"triton", "flash_attn"})
    assert effective(route(CUDA, torch.bfloat16, 64, "flash")) == ("flash", "triton", "flash")
    assert effective(route(CUDA, torch.bfloat16, 64, "triton")) == ("triton", "triton", "triton")
    assert effective(route(CUDA, torch.bfloat16, 64, "fused")) == ("vectorized", "vectorized", "fused")
    assert effective(route(CUDA, torch.bfloat16, 64, flags={})) == ("triton", "triton", "flash")
    assert effective(route(CUDA, torch.bfloat16, 64, flags={"NSA_USE_FA2": "1"})) == ("flash", "triton", "flash")
    assert effective(route(CUDA, torch.bfloat16, 64, flags={"NSA_USE_FA2": "0"})) == ("triton", "triton", "triton")


@pytest.mark.parametrize(
    ("device", "dtype", "head_size", "packages", "capability", "reason"),
    [
        (CPU, torch.bfloat16, 64, {"triton"}, (9, 0), "the Triton kernel needs a CUDA device, got cpu"),
        (CUDA, torch.bfloat16, 64, set(), (9, 0), "triton is not installed"),
        (CUDA, torch.float32, 64, {"triton"}, (9, 0), "needs float16 or bfloat16, got torch.float32"),
        (CUDA, torch.bfloat16, 257, {"triton"}, (9, 0), "serves head sizes up to 256, got 257"),
        (CUDA, torch.bfloat16, 64, {"triton"}, (7, 5), "needs compute capability 8.0 or newer"),
    ],
)
def test_a_named_triton_that_cannot_serve_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    dtype: torch.dtype,
    head_size: int,
    packages: set[str],
    capability: tuple[int, int],
    reason: str,
) -> None:
    pretend(monkeypatch, packages, capability)
    with pytest.raises(ValueError, match=f"impl='triton' cannot serve: .*{reason}"):
        route(device, dtype, head_size, "triton")
    for chosen in (route(device, dtype, head_size).compressed, route(device, dtype, head_size).selected):
        assert chosen.effective == "vectorized"
        assert reason in chosen.why


@pytest.mark.usefixtures("flash_machine")
def test_auto_takes_flash_where_it_can_serve() -> None:
    assert effective(route(CUDA, torch.bfloat16, 64)) == ("flash", "vectorized", "flash")


@pytest.mark.usefixtures("flash_machine")
@pytest.mark.parametrize(
    ("dtype", "head_size", "reason"),
    [(torch.float32, 64, "needs float16 or bfloat16"), (torch.bfloat16, 512, "head sizes up to 256")],
)
def test_a_named_flash_that_cannot_serve_is_refused(dtype: torch.dtype, head_size: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        route(CUDA, dtype, head_size, "flash")
    assert route(CUDA, dtype, head_size, "auto").sliding.effective == "fused"


def test_a_folder_of_a_packages_name_is_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, set())
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: spec(name, None))
    assert effective(route(CUDA, torch.bfloat16, 64)) == ("vectorized", "vectorized", "fused")


def test_flash_on_a_cpu_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a CUDA device, got cpu"):
        route(CPU, torch.bfloat16, 64, "flash")


@pytest.mark.usefixtures("flash_machine")
@pytest.mark.parametrize(
    ("flag", "flash"), [("0", False), ("1", True), ("", True)], ids=["forbidden", "asked for", "unset"]
)
def test_flag_decides_for_every_branch(monkeypatch: pytest.MonkeyPatch, flag: str, flash: bool) -> None:
    monkeypatch.setenv("NSA_USE_FA2", flag)
    expected = {"fa2_all_eff": flash, "fa2_win_eff": flash, "fa2_cmp_eff": flash}
    assert route(CUDA, torch.bfloat16, 64).fa2_effective() == expected


@pytest.mark.usefixtures("flash_machine")
@pytest.mark.parametrize(("flags", "flash"), [({"NSA_USE_FA2": "0"}, False), ({"NSA_USE_FA2": "1"}, True), ({}, True)])
def test_flags_given_stand_in_for_the_environments(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, str], flash: bool
) -> None:
    monkeypatch.setenv("NSA_USE_FA2", "1" if flags.get("NSA_USE_FA2") == "0" else "0")
    assert route(CUDA, torch.bfloat16, 64, flags=flags).fa2_effective()["fa2_all_eff"] is flash


@pytest.mark.parametrize("flag", ["0", "1"])
def test_flag_turns_nothing_on_where_flash_cannot_serve(monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    monkeypatch.setenv("NSA_USE_FA2", flag)
    assert not any(route(CPU, torch.bfloat16, 64).fa2_effective().values())


@pytest.mark.usefixtures("flash_machine")
def test_a_named_flash_against_the_flag_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSA_USE_FA2", "0")
    with pytest.raises(ValueError, match="NSA_USE_FA2=0 forbids"):
        route(CUDA, torch.bfloat16, 64, "flash")


@pytest.mark.parametrize("value", ["yes", "2", " 1", "true"])
def test_a_flag_that_is_neither_0_nor_1_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NSA_PREFILL_BATCHED", value)
    with pytest.raises(ValueError, match="NSA_PREFILL_BATCHED must be 0 or 1"):
        backends.prefill_is_batched()


@pytest.mark.parametrize(("value", "batched"), [("0", False), ("1", True), ("", True)])
def test_prefill_is_batched_unless_the_flag_forbids(monkeypatch: pytest.MonkeyPatch, value: str, batched: bool) -> None:
    monkeypatch.setenv("NSA_PREFILL_BATCHED", value)
    assert backends.prefill_is_batched() is batched


def test_an_unknown_impl_is_refused() -> None:
    with pytest.raises(
        ValueError, match="impl must be one of reference, vectorized, fused, triton, flash, auto, got 'fast'"
    ):
        inspect.unwrap(route)(CPU, torch.float32, 64, "fast")  # the tests' own type checks come first otherwise

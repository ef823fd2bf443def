"""r006 flag-ignored

Reported: 004, as a second cause of its illegal memory access, and as fixed by b2d5ed73.
Symptom: FlashAttention ran although NSA_USE_FA2=0.
Cause: "flag not properly disabling" says no more than the symptom. Established is what the report's own table cannot
    show: it lists three flags that were printed, not kernels that ran, and all three are equal in both rows, so a
    branch that never asks would look the same. Here the flag is read in one function, and what is printed is what
    routes.
Check: ENV101, the truth table of requested and effective.
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib.machinery import ModuleSpec
from itertools import product
from unittest.mock import patch

import torch

from nsa import backends
from nsa.backends import Impl, Routes, prefill_is_batched, route
from nsa_doctor.cases.case import examine, faulty_layer, found, on_cuda
from nsa_doctor.cases.record import Case, Plant
from nsa_doctor.subject.contract import Subject

_CONFIG = "m7c_125m_fast_log"
_ROUTE = route
_INSTALLED = ModuleSpec("flash_attn", None, origin="/there/__init__.py")
_NAMES = ("fa2_all_eff", "fa2_win_eff", "fa2_cmp_eff")


def reproduce() -> None:
    devices, dtypes, sizes = ("cpu", "cuda"), (torch.float32, torch.float16, torch.bfloat16), (64, 256, 288)
    installed = patch("importlib.util.find_spec", lambda name: _INSTALLED if name == "flash_attn" else None)
    with installed, patch("torch.cuda.get_device_capability", lambda device: (9, 0)):
        for device, dtype, size in product(devices, dtypes, sizes):
            can_serve = device == "cuda" and dtype != torch.float32 and size <= 256
            for value, allowed in (("0", False), ("1", True), ("", True)):
                table = backends.route(torch.device(device), dtype, size, flags={"NSA_USE_FA2": value}).fa2_effective()
                assert table == dict.fromkeys(_NAMES, can_serve and allowed), f"{device} {dtype} {size}: {table}"
        try:
            backends.route(torch.device("cuda"), torch.bfloat16, 64, "flash", {"NSA_USE_FA2": "0"})
        except ValueError as error:
            assert "NSA_USE_FA2=0" in str(error)  # noqa: PT017 (the sentence is what is looked at)
        else:
            raise AssertionError("flash is routed by name although NSA_USE_FA2=0 forbids it")
    for value, is_batched in (("0", False), ("1", True), ("", True)):
        with patch.dict("os.environ", {"NSA_PREFILL_BATCHED": value}):
            assert prefill_is_batched() is is_batched


def window_never_asks(
    device: torch.device,
    dtype: torch.dtype,
    head_size: int,
    impl: Impl = "auto",
    flags: Mapping[str, str] | None = None,
) -> Routes:
    routes = _ROUTE(device, dtype, head_size, impl, flags)
    if backends.why_not_flash(device, dtype, head_size, {}) is not None:
        return routes
    return replace(routes, sliding=replace(routes.sliding, effective="flash"))


def flag_alone(device: object, dtype: object, head_size: int, flags: Mapping[str, str] | None = None) -> str | None:
    """A machine on which flash-attn serves whatever the flag allows."""
    return "NSA_USE_FA2=0" if (flags or {}).get("NSA_USE_FA2") == "0" else None


def planted_on_this_machine() -> Subject:
    places = ("nsa.backends", "nsa.ops.api", "nsa.nn.attention", "nsa_doctor.adapters.nsa_layer")
    return faulty_layer({f"{place}.route": window_never_asks for place in places}, _CONFIG)


def planted() -> Subject:
    subject = planted_on_this_machine()
    patch("nsa.backends.why_not_flash", flag_alone).start()
    return subject


_EXPECTED = found("ENV101", says="NSA_USE_FA2=0 forbids flash-attn, and fa2_win_eff is effective")
CASE = Case(
    doc=__doc__,
    reproduce=reproduce,
    plants=(
        Plant(name="one branch never asks", command=examine(f"{__name__}:planted", "ENV101"), expected=_EXPECTED),
        Plant(
            name="the same where flash-attn is installed",
            command=on_cuda(examine(f"{__name__}:planted_on_this_machine", "ENV101")),
            expected=_EXPECTED,
        ),
    ),
)

"""What a check had found of a function is reported also where a later call loses the device."""

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsa_doctor.core.facts import DEVICE_LOST
from nsa_doctor.worker.function_main import FunctionHandler


def reads_by_eights(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Wrong for queries that are not contiguous, and lost where memory begins between two eights."""
    if any(each.storage_offset() % 8 for each in (query, key, value)):
        raise RuntimeError("CUDA error: misaligned address")
    out = scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    return out if query.is_contiguous() else out + 1


def checked(code: str) -> dict[str, Any]:
    """One check of it, as the process answers that examines it."""
    handler = FunctionHandler(lambda event: None)
    spec = f"fn:{reads_by_eights.__module__}:{reads_by_eights.__name__}"
    loaded = handler.answer(
        {
            "do": "load",
            "subject": {"spec": spec, "like": "sdpa", "declared": ["causal"], "reference": None, "inputs": None},
            "conditions": {"device": "cpu", "seed": 0},
            "threads": None,
            "dtype": "float32",
            "profile": "quick",
            "making_seconds": 60.0,
        }
    )
    assert "loaded" in loaded, loaded
    result: dict[str, Any] = handler.answer({"do": "check", "code": code, "planted": False})["checked"]
    return result


def test_a_wrong_output_is_reported_beside_the_call_that_loses_the_device() -> None:
    result = checked("FUN303")
    assert result["verdict"] == "FAIL"
    lost, wrong = result["findings"]
    assert lost["evidence"]["kind"] == DEVICE_LOST
    assert "(an offset of one element (q))" in lost["message"]
    assert wrong["evidence"]["tensor"] == "out"
    assert wrong["message"].startswith("with stride 0, ")
    assert lost["code"] == wrong["code"] == "FUN303"

"""What the driver says of itself is read without touching a GPU."""

import ctypes

import pytest
import torch

from nsa_doctor.probes.model.environment import environment


class Driver:
    """One that serves up to CUDA 12.8."""

    def __init__(self, name: str) -> None:
        assert name == "libcuda.so.1"

    def cuDriverGetVersion(self, at: object) -> int:  # noqa: N802 (its name there)
        ctypes.cast(at, ctypes.POINTER(ctypes.c_int))[0] = 12080  # type: ignore[arg-type]
        return 0


def test_the_newest_cuda_of_a_driver_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setattr(ctypes, "CDLL", Driver)
    assert environment().driver_cuda == (12, 8)


def test_without_a_driver_nothing_is_said_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(torch.version, "cuda", "12.6")
    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert environment().driver_cuda is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_driver_that_is_there_is_asked() -> None:
    found = environment().driver_cuda
    assert found is not None
    assert found >= (11, 0)

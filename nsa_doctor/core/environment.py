"""The software and hardware a run stands on, as a record, and what in it cannot work together."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

_UNKNOWN = ""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One CUDA device; `capability` is (9, 0) for sm_90."""

    name: str
    capability: tuple[int, int]
    total_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Facts about one machine; an empty text means not installed or not known.

    `torch_cuda` is the CUDA that torch was built for, `driver_cuda` the newest that the driver serves, both (12, 8).
    `architectures` are those torch has code for, as it names them: sm_90, compute_90. `triton_wanted` is the version
    torch asks for; `flash_error` why flash-attn, though installed, cannot be imported.
    """

    python: str = _UNKNOWN
    platform: str = _UNKNOWN
    torch: str = _UNKNOWN
    torch_cuda: tuple[int, int] | None = None
    driver: str = _UNKNOWN
    driver_cuda: tuple[int, int] | None = None
    has_nvidia_device: bool = False
    gpus: tuple[Gpu, ...] = ()
    architectures: tuple[str, ...] = ()
    triton: str = _UNKNOWN
    triton_wanted: str = _UNKNOWN
    flash: str = _UNKNOWN
    flash_error: str = _UNKNOWN
    packages: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read what `dataclasses.asdict` and JSON made of it."""
        gpus = (Gpu(**{**gpu, "capability": tuple(gpu["capability"])}) for gpu in data["gpus"])
        pairs = {name: data[name] and tuple(data[name]) for name in ("torch_cuda", "driver_cuda")}
        return cls(**{**data, **pairs, "gpus": tuple(gpus), "architectures": tuple(data["architectures"])})


@dataclass(frozen=True)
class Misfit:
    """Two parts that cannot work together, what comes of it, and what to do."""

    message: str
    parts: tuple[str, ...]


def misfits(environment: Environment) -> Iterator[Misfit]:
    """What cannot work together, the lowest layer first."""
    yield from _driver(environment)
    yield from _architectures(environment)
    yield from _triton(environment)
    if environment.flash and environment.flash_error:
        yield Misfit(
            f"flash-attn {environment.flash} is installed and cannot be imported with torch {environment.torch}: "
            f"{environment.flash_error}; install the build for this torch and this CUDA",
            ("flash-attn", "torch"),
        )


def _driver(environment: Environment) -> Iterator[Misfit]:
    built, served = environment.torch_cuda, environment.driver_cuda
    if built is None:
        if environment.has_nvidia_device and "+cpu" in environment.torch:
            yield Misfit(
                f"torch {environment.torch} is built without CUDA on a machine with an NVIDIA device: it computes on "
                "the CPU; install a CUDA build of torch",
                ("torch", "device"),
            )
        return
    # Within one major version of CUDA a newer minor one runs on an older driver.
    if served is not None and served[0] < built[0]:
        yield Misfit(
            f"torch {environment.torch} is built for CUDA {_version(built)}, and driver {environment.driver} serves up "
            f"to CUDA {_version(served)}: no kernel starts; update the driver, or install torch for CUDA {served[0]}",
            ("torch", "driver"),
        )


def _architectures(environment: Environment) -> Iterator[Misfit]:
    known = environment.architectures
    for gpu in dict.fromkeys(environment.gpus):
        if known and not any(_serves(name, gpu.capability) for name in known):
            yield Misfit(
                f"{gpu.name} has compute capability {_version(gpu.capability)}, and torch {environment.torch} holds "
                f"code for {', '.join(known)}: no kernel of torch's runs on it; install a torch built for it",
                ("torch", "device"),
            )


def _serves(architecture: str, capability: tuple[int, int]) -> bool:
    """Machine code runs on its own major version from its minor version on, intermediate code on all that came later.

    A suffix (sm_90a) binds code to exactly that one; f, to its family, is taken for one major version.
    """
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", architecture)
    if found is None:
        return True  # a name of a later scheme: nothing can be concluded
    built = int(found[2]), int(found[3])
    if found[4] == "a":
        return built == capability
    if found[1] == "compute" and not found[4]:
        return built <= capability
    return built[0] == capability[0] and built[1] <= capability[1]


def _triton(environment: Environment) -> Iterator[Misfit]:
    if environment.torch_cuda is None or not environment.triton_wanted:
        return
    if not environment.triton:
        yield Misfit(
            f"triton is not installed, and torch {environment.torch} asks for {environment.triton_wanted}: "
            f"torch.compile and flex_attention fail on the GPU; install triton=={environment.triton_wanted}",
            ("triton", "torch"),
        )
    elif environment.triton.partition("+")[0] != environment.triton_wanted.partition("+")[0]:
        yield Misfit(
            f"triton {environment.triton} is installed, and torch {environment.torch} asks for "
            f"{environment.triton_wanted}; install triton=={environment.triton_wanted}",
            ("triton", "torch"),
        )


def _version(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"

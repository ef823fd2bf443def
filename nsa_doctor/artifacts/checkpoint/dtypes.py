"""Numbers of every dtype a checkpoint has, from their bytes, by numpy alone: as float64, and which are not finite."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

BYTES: Mapping[str, int] = {
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32", "complex32", "qint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16", "bits16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool", "qint8", "quint8", "quint4x2", "quint2x4", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("bits8", "bits1x8", "bits2x4", "bits4x2"), 1),
    **dict.fromkeys((f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    "complex128": 16,
}
_PLAIN = {
    "float64",
    "float32",
    "float16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint64",
    "uint32",
    "uint16",
    "uint8",
    "bool",
}
_QUANTISED = {"qint8": "int8", "quint8": "uint8", "qint32": "int32"}
_PARTS = {"complex128": "float64", "complex64": "float32", "complex32": "float16"}
_EXPONENTS = {"float16": 0x7C00, "bfloat16": 0x7F80}
# Bits of exponent and of fraction, bias, and which patterns are no numbers.
_SMALL = {
    "float8_e4m3fn": (4, 3, 7, "all ones"),
    "float8_e5m2": (5, 2, 15, "ieee"),
    "float8_e4m3fnuz": (4, 3, 8, "minus zero"),
    "float8_e5m2fnuz": (5, 2, 16, "minus zero"),
}


@dataclass(frozen=True)
class Unfinite:
    """How many of some numbers are NaN, inf and -inf."""

    num_nan: int = 0
    num_inf: int = 0
    num_minus_inf: int = 0

    def __add__(self, other: "Unfinite") -> "Unfinite":
        return Unfinite(
            self.num_nan + other.num_nan,
            self.num_inf + other.num_inf,
            self.num_minus_inf + other.num_minus_inf,
        )

    @property
    def total(self) -> int:
        """All of them."""
        return self.num_nan + self.num_inf + self.num_minus_inf


def is_float(dtype: str) -> bool:
    """Whether numbers of that dtype can be other than finite."""
    return dtype in _PARTS or dtype in ("float64", "float32", "float16", "bfloat16") or dtype.startswith("float8")


def is_real(dtype: str) -> bool:
    """Whether numbers of that dtype are values by themselves: no whole numbers, which have a scale, and no pairs."""
    return is_float(dtype) and dtype not in _PARTS


def is_number(dtype: str) -> bool:
    """Whether `decoded` knows what the bytes mean."""
    return dtype in _PLAIN or dtype in _QUANTISED or is_float(dtype)


def elements(data: bytes | NDArray[np.uint8], dtype: str, is_swapped: bool = False) -> NDArray:
    """The bytes as numpy has them: patterns where it has no such dtype or is slow with it; complex numbers as pairs."""
    dtype = _QUANTISED.get(dtype, _PARTS.get(dtype, dtype))
    if dtype not in _PLAIN or dtype in _EXPONENTS:
        dtype = f"uint{8 * BYTES[dtype]}"
    kind = np.dtype(dtype)
    return np.frombuffer(data, kind.newbyteorder(">") if is_swapped else kind)


def decoded(values: NDArray, dtype: str) -> NDArray[np.float64]:
    """What `elements` gave, as float64; a complex number's size where it is one."""
    if dtype in _PARTS:
        parts = decoded(values, _PARTS[dtype]).reshape(-1, 2)
        return np.hypot(parts[:, 0], parts[:, 1])
    with np.errstate(invalid="ignore"):  # a NaN that signals
        if dtype == "bfloat16":
            return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        if dtype == "float16":
            return values.astype(np.uint16).view(np.float16).astype(np.float64)
        if dtype.startswith("float8"):
            return _table(dtype)[values]
        return values.astype(np.float64)


def unfinite(values: NDArray, dtype: str) -> Unfinite:
    """Which of the numbers that `elements` gave are not finite; quick when all are."""
    dtype = _PARTS.get(dtype, dtype)
    if not is_float(dtype) or not values.size:
        return Unfinite()
    if dtype in _EXPONENTS:
        exponent = np.uint16(_EXPONENTS[dtype])
        is_bad = (values & exponent) == exponent
    elif dtype.startswith("float8"):
        is_bad = ~np.isfinite(_table(dtype))[values]
    else:
        is_bad = ~np.isfinite(values)
    if not is_bad.any():
        return Unfinite()
    bad = decoded(values[is_bad], dtype)
    num_nan, num_inf = int(np.isnan(bad).sum()), int((bad == np.inf).sum())
    return Unfinite(num_nan, num_inf, bad.size - num_nan - num_inf)


@cache
def _table(dtype: str) -> NDArray[np.float64]:
    """The value of each of 256 patterns."""
    codes = np.arange(256)
    if dtype == "float8_e8m0fnu":
        return np.where(codes == 255, np.nan, 2.0 ** (codes - 127.0))
    num_exponent, num_fraction, bias, kind = _SMALL[dtype]
    exponent = (codes >> num_fraction) & (2**num_exponent - 1)
    fraction = (codes & (2**num_fraction - 1)) / 2.0**num_fraction
    size = np.where(
        exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent.astype(float) - bias)
    )
    values = np.where(codes >= 128, -size, size)
    if kind == "minus zero":
        values[128] = np.nan
    elif kind == "all ones":
        values[[127, 255]] = np.nan
    else:
        top = exponent == 2**num_exponent - 1
        values = np.where(top, np.where(fraction > 0, np.nan, np.where(codes >= 128, -np.inf, np.inf)), values)
    return values

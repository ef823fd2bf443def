"""Inputs whose values lie where low precision rounds most."""

from collections.abc import Callable, Iterator

from torch import Tensor

from nsa_doctor.subject.contract import Subject

_LARGE = 100.0  # squares overflow float16 when a few are added


def rounding_inputs(subject: Subject) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Ordinary ones, those around a number that drowns them, and large ones, in words, and what makes them."""
    yield "ordinary input", lambda x: x
    if subject.input == "embeddings":
        offset = 256.0 if subject.dtype == "float32" else 16.0  # its square drowns what lies around it
        yield f"input around {offset:g}", lambda x: x + offset
        if subject.dtype == "float16":
            yield f"input of size {_LARGE:g}", lambda x: x * _LARGE

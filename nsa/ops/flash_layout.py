"""How flash-attn wants its inputs to lie: channels side by side, each row beginning at a multiple of 16 bytes."""

from torch import Tensor, contiguous_format
from torch.nn.functional import pad

_BYTES = 16  # read at once; an address between two multiples ends in "misaligned address"


def laid_out(x: Tensor, size: int) -> Tensor:
    """[…, D] filled up with zeros to `size` channels, which change neither scores nor the leading values.

    Itself where flash-attn can read it as it lies, else a copy.
    """
    if x.shape[-1] < size:
        return pad(x, (0, size - x.shape[-1]))
    return x if _is_readable(x) else x.clone(memory_format=contiguous_format)


def _is_readable(x: Tensor) -> bool:
    steps = [stride * x.element_size() for stride, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1]
    begin = x.storage_offset() * x.element_size()
    return x.stride(-1) == 1 and not any(step % _BYTES for step in (begin, *steps))

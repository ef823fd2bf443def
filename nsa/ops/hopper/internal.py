"""What these kernels take of Gluon that it does not promise: its private names are used here alone.

Public names of Triton 3.6 for it: none; `reshape` keeps the order in which elements lie.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def viewed(buffer, shape: gl.constexpr, layout: gl.constexpr):
    """The shared memory of a buffer as elements of another shape, which lie in it as another layout says."""
    return buffer._reinterpret(buffer.dtype, shape, layout)

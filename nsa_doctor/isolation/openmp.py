"""Settings of OpenMP, oneDNN and CUDA for this process, made before torch or numpy loads them.

What a user has set stays, where nothing else is said.
"""

import ctypes


def keep_to_one_thread() -> None:
    """One thread a process, where as many processes as cores are at work."""
    _set_default(b"OMP_NUM_THREADS", b"1")


def start_no_thread() -> None:
    """One thread whatever a user has set, for numpy in a process that may start none."""
    for name in (b"OMP_NUM_THREADS", b"OPENBLAS_NUM_THREADS", b"MKL_NUM_THREADS", b"VECLIB_MAXIMUM_THREADS"):
        _set(name, b"1")


def wait_without_spinning() -> None:
    """Threads that spin make a busy machine look like a hang."""
    _set_default(b"OMP_WAIT_POLICY", b"PASSIVE")


def compute_without_float16_units() -> None:
    """Have oneDNN compute float16 by way of float32: some of its own convolutions in AVX512-FP16 never return.

    Seen with torch 2.11 and 2.13: `conv1d` of float16, depthwise, with a kernel of 16 or more.
    """
    _set_default(b"ONEDNN_MAX_CPU_ISA", b"AVX512_CORE_BF16")


def wait_for_each_kernel() -> None:
    """A launch returns once its kernel has ended, so that what fails or hangs does so at its line."""
    _set(b"CUDA_LAUNCH_BLOCKING", b"1")


def allocate_each_tensor() -> None:
    """Memory of a GPU is allocated for each tensor, so that what lies beyond a tensor belongs to none."""
    _set(b"PYTORCH_NO_CUDA_MEMORY_CACHING", b"1")


def _set_default(name: bytes, value: bytes) -> None:
    _set(name, value, replaces=False)


def _set(name: bytes, value: bytes, *, replaces: bool = True) -> None:
    # In the C library alone, where OpenMP and the driver read it: os.environ, which a subject sees, stays as it was.
    setenv = getattr(ctypes.CDLL(None), "setenv", None)
    if setenv is not None:
        setenv(name, value, int(replaces))

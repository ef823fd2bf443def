"""How a process ended, in words."""

import signal


def end_of(status: int) -> str:
    """What a process did that ended with this exit code, or less than 0 for a signal."""
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    hint = ", with which the system also ends what takes too much memory" if name == "SIGKILL" else ""
    return f"died by signal {-status} ({name}{hint})"

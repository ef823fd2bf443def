"""`python -m nsa_doctor` is the command `nsa-doctor`."""

import os

from nsa_doctor.core.own_nsa import let_ours_win
from nsa_doctor.core.signals import leave_on_signals


def start() -> None:
    """Be ready for Ctrl-C before anything that takes its time is imported."""
    _open_what_is_closed()
    leave_on_signals()
    let_ours_win()
    from nsa_doctor.cli.main import main

    main()


def _open_what_is_closed() -> None:
    """Started without standard streams it says nothing; no pipe or file of its own may become one of them."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


if __name__ == "__main__":
    start()

"""`python -m nsa_doctor` is the command `nsa-doctor`."""

from nsa_doctor.signals import leave_on_signals


def start() -> None:
    """Be ready for Ctrl-C before anything that takes its time is imported."""
    leave_on_signals()
    from nsa_doctor.cli import main

    main()


if __name__ == "__main__":
    start()

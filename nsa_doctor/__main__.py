"""`python -m nsa_doctor` is the command `nsa-doctor`."""

from nsa_doctor.cli import main

if __name__ == "__main__":
    main()

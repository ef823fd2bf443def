"""A fork of a process with torch knows that it has no threads."""

import os

import torch  # noqa: F401 (its threads are what a fork lacks)

from nsa_doctor.core.forks import has_no_threads


def test_a_fork_of_a_process_with_torch_may_not() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0 if has_no_threads() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

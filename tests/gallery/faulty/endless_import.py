"""Never finishes being imported."""

import threading

RELEASED = threading.Event()

while not RELEASED.is_set():  # here
    RELEASED.wait(0.01)


def make():
    raise AssertionError

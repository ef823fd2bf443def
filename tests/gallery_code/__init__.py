"""Bugs in code bases of several files, planted by authors who knew the README alone; no check was made for them."""

"""Where the doctor's own code lies: what stands in PACKAGE_ROOT is never the subject's, injected bugs apart."""

from pathlib import Path

PACKAGE_ROOT = Path(__file__).parents[1]


def own_file(*parts: str) -> str:
    """The path of a file of the doctor's, such as `own_file("isolation", "forked.py")`."""
    return str(PACKAGE_ROOT.joinpath(*parts))

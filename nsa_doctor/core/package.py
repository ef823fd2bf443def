"""Where the doctor's own code lies: what stands in PACKAGE_ROOT is never the subject's, injected bugs apart."""

from pathlib import Path

PACKAGE_ROOT = Path(__file__).parents[1]


def own_file(*parts: str) -> str:
    """The path of a file of the doctor's, such as `own_file("isolation", "forked.py")`."""
    return str(PACKAGE_ROOT.joinpath(*parts))


def is_doctors(file: str) -> bool:
    """Whether a file is the doctor's; regression cases, which are installed in it, are code to examine."""
    return file.startswith(f"{PACKAGE_ROOT}/") and not file.startswith(f"{PACKAGE_ROOT}/regressions/")

"""All files of the corpus."""

from collections.abc import Iterator

from tests.hostile import archives, code, costs, files, folders, odd, tensors, truncated
from tests.hostile.case import Case


def every_case() -> Iterator[Case]:
    """Each case, by theme."""
    for theme in (code, costs, archives, tensors, files, folders, odd, truncated):
        yield from theme.cases()

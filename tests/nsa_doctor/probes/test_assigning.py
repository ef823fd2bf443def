"""The line that assigns to a field is kept apart from one that reads it."""

from pathlib import Path

import pytest

from nsa_doctor.probes.hooks.field_writers import OwnLine

SOURCE = """def extend(self, x, cache):
    index = torch.arange(cache.length, cache.length + x.shape[1], device=x.device)
    if cache.length == 3:
        pass
    {assignment}
"""


@pytest.mark.parametrize(
    "assignment",
    [
        "cache.length = 5",
        "cache.length += 1",
        "cache.width, cache.length = 1, 2",
        "cache.length, cache.width = f(x), 2",
        "self.length: int = 0",
        "cache['length'] = f(x)",
    ],
)
def test_the_line_that_assigns_is_found(assignment: str, tmp_path: Path) -> None:
    file = tmp_path / "source.py"
    file.write_text(SOURCE.format(assignment=assignment), encoding="utf-8")
    found = OwnLine(str(file), 1, "extend", 1, 5).assigning("length")
    assert found is not None
    assert found.line == 5

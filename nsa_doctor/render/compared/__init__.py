"""A comparison of two reports as text, one file per format."""

import importlib

from nsa_doctor.core.comparison import Comparison

FORMATS = {"terminal": "terminal", "json": "as_json", "md": "markdown", "html": "page"}


def render_comparison(comparison: Comparison, form: str) -> str:
    """The comparison in one of FORMATS."""
    text = importlib.import_module(f"{__name__}.{FORMATS[form]}").render(comparison)
    assert isinstance(text, str)
    return text

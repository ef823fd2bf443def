"""Where the page of a check is on the site: below the address that pyproject.toml names as Documentation."""

from functools import cache
from importlib.metadata import PackageNotFoundError, metadata

from nsa_doctor.core import registry
from nsa_doctor.core.package import is_doctors

_PACKAGE, _LABEL = "nsa-doctor", "Documentation"


def address_of(code: str) -> str:
    """The address of a check's page; empty while the site has none, and for a check that has no page there."""
    site, entry = site_address(), registry.entries().get(code)
    has_a_page = entry is not None and is_doctors(str(entry.path))
    return f"{site}/{page_of(code)}" if site and has_a_page else ""


def page_of(code: str) -> str:
    """The file of a check's page in the folder of a built site."""
    return f"checks/{code}.html"


@cache
def site_address() -> str:
    """The address of the site, without a slash at its end; empty while none is named under [project.urls]."""
    try:
        urls = metadata(_PACKAGE).get_all("Project-URL") or []
    except PackageNotFoundError:  # a checkout that is not installed
        return ""
    return dict(url.split(", ", 1) for url in urls).get(_LABEL, "").rstrip("/")

"""Files that ship with the package: found beside it when it is installed, in the checkout otherwise."""

from pathlib import Path

from nsa_doctor.core.own_nsa import OWN_FOLDER


def shipped(folder: str) -> dict[str, Path]:
    """The YAML files of one folder of `configs`, by name."""
    places = (OWN_FOLDER / "configs" / folder, OWN_FOLDER.parent / "configs" / folder)
    place = next((each for each in places if each.is_dir()), None)
    return {} if place is None else {path.stem: path for path in sorted(place.glob("*.yaml"))}

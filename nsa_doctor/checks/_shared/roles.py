"""Parameters that have one role in several layers: the same name and shape, but for where they stand in lists."""

from collections.abc import Collection

from torch import nn

from nsa_doctor.probes.internal import part_at


def unlike_beside(root: nn.Module, name: str, alike: Collection[str]) -> str:
    """The same parameter of another layer of a list, which is none of these: what it is given makes it so; or empty."""
    shapes = {other: (_role(root, other), each.shape) for other, each in root.named_parameters()}
    same = (other for other in shapes if shapes[other] == shapes.get(name) and other != name)
    return next((other for other in same if other not in alike), "")


def _role(root: nn.Module, name: str) -> tuple[str, ...]:
    """The parts of a parameter's name, without where it stands in lists of modules or parameters."""
    parts, role = name.split("."), list[str]()
    for index, part in enumerate(parts):
        holder = part_at(root, ".".join(parts[:index]))
        role.append("#" if isinstance(holder, (nn.ModuleList, nn.ParameterList)) else part)
    return tuple(role)

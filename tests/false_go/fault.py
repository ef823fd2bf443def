"""A fault that shows only sometimes: a condition and an effect, written as lines of code into a healthy host."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

HOSTS = Path(__file__).parent / "hosts"
MARK = re.compile(r"^(?P<indent> *)# (?P<site>mixer|model): (?P<place>members|start|end)$")
Phase = Literal["forward", "backward"]
Site = Literal["mixer", "model", "step"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Host:
    """A healthy model with marked places: `sites` says which marks serve a site, `paths` which modules hold them.

    `refuses` are conditions by name under which it raises by itself, so that no fault shows.
    """

    name: str
    input: Literal["embeddings", "tokens"]
    sites: dict[str, str]
    paths: dict[str, tuple[str, ...]]
    max_length: int = 2048
    refuses: frozenset[str] = frozenset()

    @property
    def source(self) -> str:
        return (HOSTS / f"{self.name}.py").read_text(encoding="utf-8")


@dataclass(frozen=True, kw_only=True, eq=False)
class Condition:
    """When a fault shows: `test` is an expression over x, y and self (over grad, self and times in the backward).

    `top` are lines of the file, `members` of the class, `start` and `end` of its forward, `before` stands above the
    test; `shows` names the inputs it can show with, and `excludes` the kinds of effect that would be none.
    """

    name: str
    group: str
    test: str
    site: Site = "mixer"
    phase: Phase = "forward"
    top: str = ""
    members: str = ""
    start: str = ""
    before: str = ""
    end: str = ""
    input: str = ""
    length: int = 1
    excludes: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, eq=False)
class Effect:
    """What a fault does: `lines` change y in the forward, or grad in the backward; `kind` says how it can be seen."""

    name: str
    lines: str
    kind: str
    phase: Phase = "forward"
    top: str = ""
    site: Site | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Fault:
    """One condition and one effect in one host."""

    host: Host
    condition: Condition
    effect: Effect

    @property
    def name(self) -> str:
        return f"{self.host.name}-{self.condition.name}-{self.effect.name}"

    @property
    def file_name(self) -> str:
        return self.name.replace("-", "_")

    @property
    def site(self) -> Site:
        return self.effect.site or self.condition.site

    @property
    def paths(self) -> tuple[str, ...]:
        """The modules that are at fault."""
        return self.host.paths[self.host.sites[self.site]]

    @property
    def is_possible(self) -> bool:
        """Whether the host has the place, and the effect changes anything under the condition."""
        condition, effect = self.condition, self.effect
        clash = condition.site in ("model", "step") and effect.site not in (None, condition.site)
        return (
            not clash
            and self.site in self.host.sites
            and condition.input in ("", self.host.input)
            and condition.length <= self.host.max_length
            and condition.name not in self.host.refuses
            and effect.kind not in condition.excludes
            and not (condition.phase == "backward" and effect.phase == "forward")
        )


@dataclass(frozen=True)
class Written:
    """The text of a faulty model and the numbers of the lines at fault."""

    text: str
    lines: frozenset[int] = field(default=frozenset())


def write(fault: Fault) -> Written:
    """The host's code with the fault in it."""
    pieces, mark = _pieces(fault), fault.host.sites[fault.site]
    out: list[str] = []
    at_fault: list[int] = []
    for line in fault.host.source.splitlines():
        found = MARK.match(line)
        added: str | None = line
        if found:
            added = pieces.get(found["place"], "") if found["site"] == mark else ""
        elif line == "# top":
            added = pieces["top"]
        if added is line:
            out.append(line)
            continue
        indent = found["indent"] if found else ""
        for each in added.splitlines():
            out.append(f"{indent}{each}".rstrip())
            if found is None or found["place"] == "end":
                at_fault.append(len(out))
    return Written("\n".join(out) + "\n", frozenset(at_fault))


def _pieces(fault: Fault) -> dict[str, str]:
    condition, effect = fault.condition, fault.effect
    test = f"if {condition.test}:\n"
    top = [condition.top, effect.top]
    if effect.phase == "forward":
        shown = condition.before + test + _indented(effect.lines)
    elif condition.phase == "forward":
        top.append(_function(effect.lines))
        shown = condition.before + test + "    y = Rescaled.apply(y, self)\n"
    else:
        top.append(_function(condition.before + test + _indented(effect.lines)))
        shown = "y = Rescaled.apply(y, self)\n"
    return {
        "top": "\n".join(filter(None, top)),
        "members": condition.members,
        "start": condition.start,
        "end": shown + condition.end,
    }


def _function(lines: str) -> str:
    return _FUNCTION + _indented(lines, 8) + "        return grad, None\n"


def _indented(lines: str, by: int = 4) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in lines.splitlines())


_FUNCTION = '''

class Rescaled(torch.autograd.Function):
    """The identity, whose backward looks at the gradient."""

    @staticmethod
    def forward(ctx, y, owner):
        ctx.owner, ctx.times = owner, 0
        return y.clone()

    @staticmethod
    def backward(ctx, grad):
        self = ctx.owner
        ctx.times += 1
'''

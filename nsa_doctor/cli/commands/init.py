"""`nsa-doctor init`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from nsa_doctor.cli import option_types as given
from nsa_doctor.cli import options
from nsa_doctor.cli.option_groups import FunctionOptions, SubjectOptions
from nsa_doctor.cli.project_file import FILE, find_project_file
from nsa_doctor.cli.proposal import FACTORY, Proposal
from nsa_doctor.cli.proposals import proposals
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.like import FUNCTION
from nsa_doctor.core.text import counted, escaped, joined
from nsa_doctor.core.writing import check_writable, say, write_whole

_MOST_OTHERS = 5
_HEAD = """\
# Read by nsa-doctor in this folder and below it, where a command line names no --subject: `nsa-doctor run` examines
# this one, `nsa-doctor go-no-go` decides by the policy. Every key is the option of that name: `nsa-doctor run -h`.
"""


def init(
    subject: given.Subject = None,
    like: given.Like = None,
    policy: given.PolicyFile = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
) -> int:
    """Look for attention code here, and write nsa-doctor.toml.

    For example `nsa-doctor init`, then `nsa-doctor run`.

    Source is read and not run. Name a --subject where another one is meant.
    """
    here = Path.cwd()
    path = Path(FILE)
    _require_none(here, overwrite)
    check_writable(path)
    found = proposals(here)
    chosen = _named(subject, like, found) if subject is not None else _likeliest(found, like)
    options.examined(
        SubjectOptions(subject=chosen.subject, spec=chosen.spec),
        device="cpu",
        seed=0,
        timeout=1.0,
        function=FunctionOptions(like=chosen.like),
    )
    text = _text(chosen, policy or ("function" if chosen.like else "foreign"), found)
    if policy is not None:
        from nsa_doctor.cli.evidence import read_gate_option

        read_gate_option(policy)
    if chosen.needs_factory:
        _write_factory(chosen, overwrite)
    write_whole(path, text)
    others = [each for each in found if each != chosen and not each.missing]
    more = f"; {counted(len(others), 'other candidate')}, in its comments" if others else ""
    say(
        f"written: {FILE}: examines {escaped(chosen.subject)} ({escaped(chosen.place)}){more}\n{_how_made(chosen)}"
        "next: nsa-doctor run (a minute), or nsa-doctor run --profile smoke (ten seconds)\n",
        sys.stdout,
    )
    return 0


def _require_none(here: Path, overwrite: bool) -> None:
    """Refuse to write beside what is there."""
    if (here / FILE).is_symlink() or (here / FILE).exists():
        if not overwrite:
            raise UsageError(f"{FILE}: is there already; add --overwrite to replace it")
        return
    present = find_project_file(here)
    if present is not None and present.path.parent == here:
        raise UsageError(f"{present.name} has [tool.nsa-doctor] already: change it there")


def _write_factory(chosen: Proposal, overwrite: bool) -> None:
    """Write the file that makes the subject; raises UsageError where another one is there."""
    path = Path(FACTORY)
    if not overwrite and (path.is_symlink() or path.exists()):
        raise UsageError(f"{FACTORY}: is there already; add --overwrite to replace it")
    write_whole(path, chosen.factory)


def _how_made(chosen: Proposal) -> str:
    """What was written beside the settings, or is left to be written into them."""
    if chosen.needs_factory:
        return f"written: {FACTORY}: makes {chosen.made}; change it to examine another\n"
    if chosen.like and chosen.spec is None:
        return (
            f"left to you: spec in {FILE}, which keys it reads; its masks and outputs are compared with nothing else\n"
        )
    return ""


def _named(subject: str, like: str | None, found: Sequence[Proposal]) -> Proposal:
    """What was asked for by name, with what was read of it."""
    known = next((each for each in found if each.own_subject == subject), None)
    if known is not None and known.missing:
        raise UsageError(_needs(known))
    if known is not None:
        return replace(known, like=like or known.like)
    module, _, name = subject.removeprefix(FUNCTION).partition(":")
    return Proposal(module=module, name=name, place="not found in this folder", weight=0, like=like, words=subject)


def _likeliest(found: Sequence[Proposal], like: str | None) -> Proposal:
    """The first that can be built; raises UsageError, which says what would help, where there is none."""
    if like is not None:
        raise UsageError("--like is for a --subject fn:package.module:function; leave it out")
    if not found:
        raise UsageError(
            "no Python file here defines an nn.Module or an attention function of q, k and v: change to the folder of "
            "your code, or name it: nsa-doctor init --subject package.module:factory"
        )
    likely = max(found, key=lambda each: each.weight)
    if found[0].missing or (likely.missing and found[0].weight == 0):
        raise UsageError(_needs(likely))
    return found[0]


def _needs(proposal: Proposal) -> str:
    call = ", ".join(f"{name}=…" for name in proposal.missing)
    return (
        f"{escaped(proposal.place)} {proposal.name} needs {joined(proposal.missing)}: write {FACTORY} here with "
        f"from {proposal.module} import {proposal.name} and def make(): return {proposal.name}({call}), and say "
        f"nsa-doctor init --subject {FACTORY.removesuffix('.py')}:make"
    )


def _text(chosen: Proposal, policy: str, found: Sequence[Proposal]) -> str:
    lines = [_HEAD, f"subject = {_quoted(chosen.subject)}  # {escaped(chosen.place)}"]
    if chosen.like:
        lines.append(
            f"like = {_quoted(chosen.like)}  # a guess by its parameters; `nsa-doctor run -h` lists the others"
        )
        lines.append(_spec_line(chosen.spec))
    if chosen.folder != ".":
        folders = [chosen.folder, *(["."] if chosen.needs_factory else [])]
        lines.append(f"path = [{', '.join(map(_quoted, folders))}]  # where its package lies")
    lines.append(f"policy = {_quoted(policy)}  # what go-no-go requires; `nsa-doctor gate-init` drafts one of your own")
    lines.append('profile = "quick"  # smoke (10 s), quick (a minute) or full (ten minutes)')
    others = [each for each in found if each.own_subject not in (chosen.own_subject, chosen.subject)]
    if others:
        lines.append("\n# Found here too:")
    for each in others[:_MOST_OTHERS]:
        like = f", like = {_quoted(each.like)}" if each.like else ""
        needs = f", which needs {joined(each.missing)}" if each.missing else ""
        needs = (
            f"; `nsa-doctor init --overwrite --subject {each.own_subject}` makes it" if each.needs_factory else needs
        )
        lines.append(f"# subject = {_quoted(each.own_subject)}{like}  ({escaped(each.place)}{escaped(needs)})")
    return "\n".join(lines) + "\n"


def _spec_line(spec: str | None) -> str:
    """What a function is declared to compute; a comment where nothing says so, for masks need it."""
    if spec is not None:
        return f"spec = {_quoted(spec)}  # a guess by its argument's default; square: only as many queries as keys"
    return '# spec = "causal"  # or full, window=W, as it is: without it masks and outputs are compared with nothing'


def _quoted(text: str) -> str:
    """The text as TOML writes it; a basic string of TOML is written as JSON's."""
    return json.dumps(text, ensure_ascii=False)

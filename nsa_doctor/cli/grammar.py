"""What every command line has beside its command: help, the version, and a folder to work in."""

import platform
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from nsa_doctor.cli.project_file import ProjectFile, find_project_file
from nsa_doctor.cli.search_path import looked_in_first
from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.finding import ExitCode
from nsa_doctor.core.nearest import nearest
from nsa_doctor.core.report_facts import installed_version
from nsa_doctor.core.text import escaped
from nsa_doctor.core.writing import say

FIRST_WORDS = """\
nsa-doctor: a command is needed: one of these to begin with, or --help for all
  nsa-doctor init                                      look for attention code here, and write nsa-doctor.toml
  nsa-doctor run                                       examine what nsa-doctor.toml names
  nsa-doctor run --subject my_package.my_module:make   examine a module of yours
  nsa-doctor watch RUN_DIR                             examine a training run, live or finished
  nsa-doctor explain CODE                              what a finding means, and what to do
"""
_NEED_NO_FOLDER = ("compare", "explain", "list", "render", "watch")
_READ_THE_PROJECT_FILE = ("anomaly", "gate-init", "go-no-go", "run", "sweep", "throughput")
_NAME_THE_SUBJECT = ("subject", "config")
_LISTS = ("--ignore", "--select", "--seq", "--spec", "--values")  # of words with commas between them
HELP_NAMES = {"help_option_names": ["-h", "--help"]}


class Command(TyperCommand):
    """A command whose help survives a reader that leaves, and which starts only where processes can be started."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option -h, --help."""
        return _spoken(super().get_help_option(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """A list that is given in several options is one list; the last of them alone would hide what was asked for."""
        return super().parse_args(ctx, _with_lists_joined(args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command with what was parsed."""
        if ctx.info_name not in _NEED_NO_FOLDER:
            require_folder()
        project = find_project_file(Path.cwd()) if ctx.info_name in _READ_THE_PROJECT_FILE else None
        if project is None:
            return super().invoke(ctx)
        _take_options(project, ctx)
        with looked_in_first(project.folders):
            return super().invoke(ctx)


class Group(TyperGroup):
    """All commands; their help is printed as theirs is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Say what to do first where nothing was asked for."""
        if not args and not ctx.resilient_parsing:
            say(FIRST_WORDS, sys.stderr)
            ctx.exit(ExitCode.USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is asked for; a slip of the fingers is answered with what it may have meant."""
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            raise UsageError(f"No such command {args[0]!r}: {nearest(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def get_help_option(self, ctx: Any) -> Any:
        """The option -h, --help."""
        return _spoken(super().get_help_option(ctx))


def _with_lists_joined(args: list[str]) -> list[str]:
    """`--select A --select=B` as `--select=A,B`, where the first of them stands; nothing behind `--` is an option."""
    end = args.index("--") if "--" in args else len(args)
    words, joined, places = iter(args[:end]), list[str](), dict[str, int]()
    for word in words:
        name, sign, text = word.partition("=")
        value = text if sign or name not in _LISTS else next(words, None)
        if name not in _LISTS or value is None:  # without a value the option's own error says so
            joined.append(word)
        elif name in places:
            joined[places[name]] += f",{value}"
        else:
            places[name] = len(joined)
            joined.append(f"{name}={value}")
    return joined + args[end:]


def _take_options(project: ProjectFile, ctx: Any) -> None:
    """Options that the command line leaves open, as the project's file has them, unless it names a subject itself."""
    given = {name for name in ctx.params if ctx.get_parameter_source(name).name != "DEFAULT"}
    if given.intersection(_NAME_THE_SUBJECT):
        return
    taken = {name: value for name, value in project.options.items() if name in ctx.params and name not in given}
    ctx.params.update(taken)
    if taken and not ctx.params.get("quiet"):
        words = ", ".join(f"{name.removesuffix('_kind')} {value}" for name, value in taken.items())
        say(f"nsa-doctor: {project.name} says {escaped(words)}\n", sys.stderr)


def require_folder() -> None:
    """Refuse a current folder that was deleted: no child process can import torch there."""
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError("the current folder was deleted; change to one that exists") from error


def _show_version(is_asked: bool) -> None:
    if is_asked:
        say(f"{version_line()}\n", sys.stdout)
        raise typer.Exit


def general(
    shows_version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Print the versions of nsa-doctor, torch and Python.",
        ),
    ] = False,
) -> None:
    """Take what may be said before a command."""


def version_line() -> str:
    """nsa-doctor's version, and those of torch and Python, none of which is imported to be asked."""
    own, torch = installed_version("nsa-doctor"), installed_version("torch")
    return f"nsa-doctor {own} (torch {torch}, Python {platform.python_version()})"


def _spoken(option: Any) -> Any:
    """The help option, which prints by `say`: typer's own raises where the stream is full or closed."""
    if option is not None:
        option.callback = _show_help
    return option


def _show_help(ctx: Any, _param: Any, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        say(f"{ctx.get_help()}\n", sys.stdout)
        ctx.exit()

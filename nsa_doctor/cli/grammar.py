"""What every command line has beside its command: help, the version, and a folder to work in."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from nsa_doctor.core.errors import UsageError
from nsa_doctor.core.writing import say

FIRST_WORDS = """\
nsa-doctor: a command is needed: one of these to begin with, or --help for all
  nsa-doctor run --subject my_package.my_module:make   examine a module of yours
  nsa-doctor watch RUN_DIR                             examine a training run, live or finished
  nsa-doctor explain CODE                              what a finding means, and what to do
"""
_NEED_NO_FOLDER = ("explain", "list", "render", "watch")
HELP_NAMES = {"help_option_names": ["-h", "--help"]}


class Command(TyperCommand):
    """A command whose help survives a reader that leaves, and which starts only where processes can be started."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option -h, --help."""
        return _spoken(super().get_help_option(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run the command with what was parsed."""
        if ctx.info_name not in _NEED_NO_FOLDER:
            require_folder()
        return super().invoke(ctx)


class Group(TyperGroup):
    """All commands; their help is printed as theirs is."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option -h, --help."""
        return _spoken(super().get_help_option(ctx))


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
    return f"nsa-doctor {_installed('nsa-doctor')} (torch {_installed('torch')}, Python {platform.python_version()})"


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _spoken(option: Any) -> Any:
    """The help option, which prints by `say`: typer's own raises where the stream is full or closed."""
    if option is not None:
        option.callback = _show_help
    return option


def _show_help(ctx: Any, _param: Any, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        say(f"{ctx.get_help()}\n", sys.stdout)
        ctx.exit()

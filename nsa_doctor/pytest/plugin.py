"""`pytest --nsa-subject my_pkg.attn:make`, or `--nsa` where nsa-doctor.toml names it: every check as a test item.

Installed with nsa-doctor and idle until one of its options is given. Works with pytest-xdist (each worker examines in
a child process of its own), pytest-timeout and JUnit output.
"""

import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from nsa_doctor.pytest.items import Examining
    from nsa_doctor.subject.contract import Subject

_MARK = "nsa_doctor"
_OPTION = re.compile(r"^--")  # the first word of what an option is refused for
_OPTIONS = (
    *("subject", "config", "profile", "select", "ignore", "input", "width", "spec", "device", "dtype", "seed"),
    "timeout",
)
_STASHED: "pytest.StashKey[Examining]" = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, in a group of their own."""
    group = parser.getgroup("nsa-doctor", "examine sparse-attention code: every check becomes a test item")
    group.addoption("--nsa", action="store_true", help="examine what nsa-doctor.toml names, as it says")
    group.addoption("--nsa-subject", metavar="SPEC", help="package.module:factory to examine, or nsa for the built-in")
    group.addoption("--nsa-config", metavar="CONFIG", help="configuration file or built-in name for the built-in nsa")
    group.addoption("--nsa-profile", metavar="PROFILE", help="smoke, quick or full (quick)")
    group.addoption("--nsa-select", metavar="CODES", help="only these codes or families: FWD,NAN")
    group.addoption("--nsa-ignore", metavar="CODES", help="not these codes or families")
    group.addoption("--nsa-input", metavar="KIND", help="embeddings or tokens; found out when not given")
    group.addoption("--nsa-width", metavar="N", type=int, help="width of embeddings, or size of the vocabulary")
    group.addoption("--nsa-spec", metavar="WORDS", help="what the subject is meant to be: bidirectional, stochastic")
    group.addoption("--nsa-device", metavar="DEVICE", help="cpu or cuda (cpu)")
    group.addoption("--nsa-dtype", metavar="DTYPE", help="examine it in this dtype in place of its own")
    group.addoption("--nsa-seed", metavar="N", type=int, help="seed of weights and inputs (0)")
    group.addoption("--nsa-timeout", metavar="S", type=float, help="seconds one call may take (30)")


def pytest_configure(config: pytest.Config) -> None:
    """Read the options, if any are given; what cannot be is a usage error before anything is collected."""
    config.addinivalue_line("markers", f"{_MARK}: a check of nsa-doctor on --nsa-subject")
    given = {name: value for name in _OPTIONS if (value := config.getoption(f"nsa_{name}")) is not None}
    names_one = bool(given.get("subject") or given.get("config"))
    if not (config.getoption("nsa") or names_one):
        for name in given:
            raise pytest.UsageError(
                f"--nsa-{name} has no effect without --nsa-subject or --nsa; add one, or leave it out"
            )
        return
    if config.getoption("nsa") and names_one:
        raise pytest.UsageError("--nsa examines what nsa-doctor.toml names, --nsa-subject another: leave one out")
    from nsa_doctor.cli.project_file import FILE
    from nsa_doctor.core.errors import OptionError, UsageError
    from nsa_doctor.pytest.items import Examining

    try:
        named = _from_project_file(config)
        if config.getoption("nsa"):
            if not {"subject", "config"}.intersection(named):
                raise pytest.UsageError(f"--nsa: no {FILE} here or above names a subject; `nsa-doctor init` writes one")
            given = {**named, **given}
        config.stash[_STASHED] = Examining.asked(given)
    except OptionError as error:
        said = f"{FILE}: {error}" if config.getoption("nsa") else _OPTION.sub("--nsa-", str(error))
        raise pytest.UsageError(said) from error
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def _from_project_file(config: pytest.Config) -> dict[str, Any]:
    """What the nearest nsa-doctor.toml says; its folders are on the path until pytest ends. Raises UsageError."""
    from nsa_doctor.cli.project_file import find_project_file
    from nsa_doctor.cli.search_path import looked_in_first

    project = find_project_file(config.invocation_params.dir) or find_project_file(config.rootpath)
    if project is None:
        return {}
    folders = ExitStack()
    folders.enter_context(looked_in_first(project.folders))
    config.add_cleanup(folders.close)
    return {"input" if name == "input_kind" else name: value for name, value in project.options.items()}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add an item for each check, before -k and -m choose among them all."""
    examining = config.stash.get(_STASHED, None)
    if examining is None:
        return
    from nsa_doctor.pytest.items import checked_items

    added: list[pytest.Item | pytest.Collector] = []
    for item in checked_items(session, examining):
        item.add_marker(_MARK)
        if config.pluginmanager.hasplugin("timeout"):
            item.add_marker(pytest.mark.timeout(examining.seconds_for_an_item))
        items.append(item)
        added.append(item)
    collected = pytest.CollectReport("nsa-doctor", "passed", None, added)  # for the count of collected items
    session.ihook.pytest_collectreport(report=collected)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is examined."""
    examining = config.stash.get(_STASHED, None)
    return None if examining is None else f"nsa-doctor: {examining.title}"


@pytest.fixture(scope="session")
def nsa_subject(pytestconfig: pytest.Config) -> "Subject":
    """The subject of --nsa-subject, loaded in this process: for benchmarks and tests of one's own."""
    examining = pytestconfig.stash.get(_STASHED, None)
    if examining is None:
        pytest.skip("needs --nsa-subject package.module:factory, or --nsa-subject nsa")
    if examining.is_of_function:
        pytest.skip("a function is no module that could be loaded here")
    return examining.load_here()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End the child process."""
    examining = config.stash.get(_STASHED, None)
    if examining is not None:
        examining.close()

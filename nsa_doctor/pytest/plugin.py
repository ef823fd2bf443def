"""`pytest --nsa-subject my_pkg.attn:make`: every check as a test item, beside the project's own tests.

Installed with nsa-doctor and idle until one of its options is given. Works with pytest-xdist (each worker examines in
a child process of its own), pytest-timeout and JUnit output.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nsa_doctor.pytest.items import Examining
    from nsa_doctor.subject.contract import Subject

_MARK = "nsa_doctor"
_STASHED: "pytest.StashKey[Examining]" = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options, in a group of their own."""
    group = parser.getgroup("nsa-doctor", "examine sparse-attention code: every check becomes a test item")
    group.addoption("--nsa-subject", metavar="SPEC", help="package.module:factory to examine, or nsa for the built-in")
    group.addoption("--nsa-config", metavar="CONFIG", help="configuration file or built-in name for the built-in nsa")
    group.addoption("--nsa-profile", metavar="PROFILE", default="quick", help="smoke, quick or full (quick)")
    group.addoption("--nsa-select", metavar="CODES", help="only these codes or families: FWD,NAN")
    group.addoption("--nsa-ignore", metavar="CODES", help="not these codes or families")
    group.addoption("--nsa-input", metavar="KIND", help="embeddings or tokens; found out when not given")
    group.addoption("--nsa-width", metavar="N", type=int, help="width of embeddings, or size of the vocabulary")
    group.addoption("--nsa-spec", metavar="WORDS", help="what the subject is meant to be: bidirectional")
    group.addoption("--nsa-device", metavar="DEVICE", default="cpu", help="cpu or cuda (cpu)")
    group.addoption("--nsa-dtype", metavar="DTYPE", help="examine it in this dtype in place of its own")
    group.addoption("--nsa-seed", metavar="N", type=int, default=0, help="seed of weights and inputs (0)")
    group.addoption("--nsa-timeout", metavar="S", type=float, default=30.0, help="seconds one call may take (30)")


def pytest_configure(config: pytest.Config) -> None:
    """Read the options, if any are given; what cannot be is a usage error before anything is collected."""
    config.addinivalue_line("markers", f"{_MARK}: a check of nsa-doctor on --nsa-subject")
    if not (config.getoption("nsa_subject") or config.getoption("nsa_config")):
        for name in ("select", "ignore", "input", "width", "spec", "dtype"):
            if config.getoption(f"nsa_{name}") is not None:
                raise pytest.UsageError(f"--nsa-{name} has no effect without --nsa-subject; add it, or leave it out")
        return
    from nsa_doctor.cli.option_groups import SubjectOptions
    from nsa_doctor.core.errors import OptionError
    from nsa_doctor.pytest.items import Examining

    subject = config.getoption("nsa_subject")
    try:
        config.stash[_STASHED] = Examining.asked(
            SubjectOptions(
                subject=None if subject == "nsa" else subject,
                config=config.getoption("nsa_config"),
                input_kind=config.getoption("nsa_input"),
                width=config.getoption("nsa_width"),
                spec=config.getoption("nsa_spec"),
            ),
            profile=config.getoption("nsa_profile"),
            select=config.getoption("nsa_select"),
            ignore=config.getoption("nsa_ignore"),
            device=config.getoption("nsa_device"),
            dtype=config.getoption("nsa_dtype"),
            seed=config.getoption("nsa_seed"),
            timeout=config.getoption("nsa_timeout"),
        )
    except OptionError as error:
        raise pytest.UsageError(str(error).replace("--", "--nsa-", 1)) from error


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
    return examining.load_here()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End the child process."""
    examining = config.stash.get(_STASHED, None)
    if examining is not None:
        examining.close()

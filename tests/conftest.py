"""What every test runs under: seeds, signals that work, NaN in memory nobody wrote, reproducible Hypothesis, golden."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest
import torch
from hypothesis.internal.conjecture import providers

hypothesis.settings.register_profile("reproducible", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.load_profile("reproducible")

_HERE = Path(__file__).parent
DOCTOR = tuple(str(folder) for folder in (_HERE.parent / "nsa_doctor", _HERE / "nsa_doctor"))
is_local = providers.is_local_module_file


def may_give_constants(path: str) -> bool:
    """Whether Hypothesis may try constants of that source: an installed doctor's are none either, and take seconds."""
    return not path.startswith(DOCTOR) and is_local(path)


providers.is_local_module_file = may_give_constants

TRITON = ("compress", "decode", "gate", "score", "select", "slide")
KERNELS = {
    *("nsa.ops.kernel_tiles", "nsa.ops.kernel_launch", "nsa.ops.band_kernels"),
    *(f"nsa.ops.select.{name}_kernels" for name in ("block", "near", "part", "reader")),
    *("nsa.ops.decode.choice", "nsa.ops.decode.token", "nsa.train.loss_kernels"),
    *(f"nsa.ops.{folder}.triton" for folder in TRITON),
    *(f"nsa.ops.hopper.{name}" for name in ("tiles", "forward", "gradients", "score")),
    *(f"nsa.ops.hopper.{name}" for name in ("internal", "select", "select_gradients", "select_keys", "select_tiles")),
}


class PlainKernels(MetaPathFinder):
    """Imports Triton's kernels as they are: Triton compiles their source, which the hook for shape checks changes."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, path, target) if fullname in KERNELS else None


sys.meta_path.insert(0, PlainKernels())

if not torch.cuda.is_available():  # or each of many thousand seeds formats the stack, for the day CUDA starts
    torch.manual_seed = torch.default_generator.manual_seed

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="rewrite the golden files; run the tests that have one")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--golden"):
        compares = [item for item in items if "golden" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=[item for item in items if item not in compares])
        items[:] = compares
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))
            # Kernels without a deterministic form only warn about the mode that `fill_unwritten_memory` needs.
            item.add_marker(pytest.mark.filterwarnings("ignore:.*[Dd]eterministic"))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if session.config.getoption("--golden") and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--golden"):
        names = sorted(str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*") if path.suffix)
        terminalreporter.write_line(f"golden files: {', '.join(names) or 'none, because no test compares with one'}")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares the text with tests/golden/NAME; `make golden` writes it there instead."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.is_file(), f"there is no {path.relative_to(GOLDEN.parents[1])}: make golden writes it"
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture(autouse=True)
def answered_signals() -> None:
    """A test that delivered a report, or who started the tests, may have left signals ignored, for every child too."""
    stopping = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stopping)
    for number in stopping:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def fill_unwritten_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """`torch.empty` holds NaN (the largest value for integers), wherever it is called from; benchmarks go without."""
    if GOLDEN.with_name("benchmarks") in request.node.path.parents:
        yield
        return
    torch.utils.deterministic.fill_uninitialized_memory = True  # works in deterministic mode alone
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)

"""One search: Hypothesis makes cases, a tester tries them, the least that fails stays.

The first property that fails is the one that is shrunk: another one on the way is another bug, for another run.
"""

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.strategies import SearchStrategy

from nsa_doctor.core.errors import Caught, attempt
from nsa_doctor.core.facts import Violation
from nsa_doctor.fuzz.outcome import Failure, FuzzOutcome

MOST_SHRINKS = 1000
# What ends a child costs a new one, and a hang its whole time limit.
_MOST_REPEATED: Mapping[str, int] = {Violation.HANGS: 1, Violation.DIES: 10}

Tester = Callable[[dict[str, Any]], FuzzOutcome]


class _TimeIsUpError(BaseException):
    """Ends a search from within: Hypothesis would take an Exception for a failure."""


class _FailedError(Exception):
    """A case that fails, for Hypothesis to shrink."""


@dataclass
class Search:
    """What a search came to; it grows as the work goes on, so that an interruption keeps what there is."""

    num_examples: int = 0
    num_discarded: int = 0
    num_shrinks: int = 0
    discarded: str = ""
    seconds: float = 0.0
    case: dict[str, Any] | None = None
    failure: Failure | None = None
    is_repeatable: bool = True
    _failing: dict[str, Failure] = field(default_factory=dict)
    _num_fatal: int = 0

    def run(
        self,
        strategy: SearchStrategy[dict[str, Any]],
        test: Tester,
        *,
        examples: int,
        number: int,
        until: float,
        listen: Callable[["Search"], None],
    ) -> None:
        """Try up to `examples` cases of seed `number`, until the time `until` as `time.monotonic` counts it."""

        def tried(case: dict[str, Any]) -> None:
            if not self._failing and time.monotonic() >= until:
                raise _TimeIsUpError
            text = self._try(case, test)
            listen(self)
            if text in self._failing:
                raise _FailedError(text)  # from one line, whatever the property: Hypothesis tells failures by it

        limits = settings(
            max_examples=examples,
            database=None,
            deadline=None,
            derandomize=False,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            verbosity=Verbosity.quiet,
            print_blob=False,
        )
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as home:
            set_hypothesis_home_dir(home)  # it would leave a folder where the user stands
            ended = attempt(seed(number)(limits(given(strategy)(tried))))
        self.seconds += time.monotonic() - start
        self._keep_least(ended.error if isinstance(ended, Caught) else None)
        if isinstance(ended, Caught) and not isinstance(ended.error, (_FailedError, _TimeIsUpError)):
            raise ended.error
        if self.case is not None and self.failure is not None and self.failure.property not in _MOST_REPEATED:
            self.is_repeatable = _holding(test(self.case), self.failure.property) is not None

    def _try(self, case: dict[str, Any], test: Tester) -> str:
        """The case as text, by which it is known among those that fail."""
        text, held = json.dumps(case), self._held()
        is_enough = self.num_shrinks >= MOST_SHRINKS or self._num_fatal >= _MOST_REPEATED.get(held, 10)
        if text in self._failing or (held and is_enough):
            return text
        if held:
            self.num_shrinks += 1
        else:
            self.num_examples += 1
        outcome = test(case)
        self.num_discarded += bool(outcome.discarded)
        self.discarded = self.discarded or outcome.discarded
        self._num_fatal += any(failure.property in _MOST_REPEATED for failure in outcome.failures)
        failure = _holding(outcome, held)
        if failure is not None:
            self._failing[text] = failure
        return text

    def _held(self) -> str:
        return next((failure.property for failure in self._failing.values()), "")

    def _keep_least(self, error: BaseException | None) -> None:
        """The case Hypothesis ended on; cut short, the shortest of those that failed."""
        if not self._failing:
            return
        text = str(error) if isinstance(error, _FailedError) else min(self._failing, key=lambda text: (len(text), text))
        self.case, self.failure = json.loads(text), self._failing[text]


def _holding(outcome: FuzzOutcome, property: str) -> Failure | None:
    """The failure of that property; the first one where none is named."""
    return next((failure for failure in outcome.failures if property in ("", failure.property)), None)

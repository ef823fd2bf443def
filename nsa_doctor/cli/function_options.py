"""The options of a function: which convention it is called by, what it is compared with."""

from collections.abc import Mapping

from nsa_doctor.cli.option_groups import FunctionOptions, SubjectOptions
from nsa_doctor.cli.subject_names import in_place_of_path, is_named
from nsa_doctor.core.errors import OptionError
from nsa_doctor.core.like import CONVENTIONS, FUNCTION
from nsa_doctor.core.nearest import one_of


def function_words(whom: SubjectOptions, function: FunctionOptions | None) -> Mapping[str, str | None]:
    """like, reference and inputs of a function; nothing where no function is asked for. Raises OptionError."""
    is_function = whom.subject is not None and whom.subject.startswith(FUNCTION)
    if function is None:
        if is_function:
            raise OptionError(f"--subject {whom.subject} is a function, which run and go-no-go alone examine")
        return {}
    given = [f"--{name}" for name, value in function.words().items() if value is not None]
    if not is_function:
        if given:
            raise OptionError(f"{given[0]} is for a function, as --subject fn:package.module:function; leave it out")
        return {}
    assert whom.subject is not None
    if not is_named(whom.subject.removeprefix(FUNCTION)):
        raise OptionError(
            f"--subject must be fn:package.module:function, got {whom.subject!r}{in_place_of_path(whom.subject)}"
        )
    if function.like is None:
        raise OptionError(
            f"--subject {whom.subject} is a function: say how it is called with --like, one of {', '.join(CONVENTIONS)}"
        )
    if function.reference is not None and not is_named(function.reference):
        raise OptionError(f"--reference must be package.module:function, got {function.reference!r}")
    of_modules = {
        "--input": whom.input_kind,
        "--width": whom.width,
        "--config": whom.config,
        "--train": whom.train,
        "--size": whom.size,
    }
    for option, value in of_modules.items():
        if value is not None:
            raise OptionError(f"{option} is for modules and has no effect on a function; leave it out")
    like = function.like if is_named(function.like) else one_of("--like", function.like, CONVENTIONS)
    return {"like": like, "reference": function.reference, "inputs": function.inputs}

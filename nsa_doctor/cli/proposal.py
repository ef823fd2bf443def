"""One thing that `nsa-doctor init` may have examined, and the file that makes it where its name alone does not."""

from dataclasses import dataclass

from nsa_doctor.core.adapter_words import adapter_words, is_of_attention

FACTORY = "doctor_subject.py"
_FACTORY = '''\
"""What nsa-doctor examines: written by `nsa-doctor init`, to be changed as you like."""

{imports}


def make():
    return {made}
'''


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """One thing that may be examined; `missing` are arguments it cannot be built without, `folder` where it is from.

    `made_with` are arguments that it needs too, each with a class of that module that needs none, and `asked` those of
    its forward, where there are several: a factory is written for it, in a file of its own. `like` and `spec` are
    guesses of how a function is called and what it computes.
    """

    module: str
    name: str
    place: str
    weight: int
    like: str | None = None
    spec: str | None = None
    missing: tuple[str, ...] = ()
    made_with: tuple[tuple[str, str], ...] = ()
    asked: tuple[str, ...] = ()
    folder: str = "."
    words: str = ""

    @property
    def subject(self) -> str:
        """What `--subject` takes; `words`, where a person has given them."""
        return f"{FACTORY.removesuffix('.py')}:make" if self.needs_factory else self.own_subject

    @property
    def own_subject(self) -> str:
        """The same without a factory that is written for it."""
        return self.words or f"{'fn:' if self.like else ''}{self.module}:{self.name}"

    @property
    def needs_factory(self) -> bool:
        """Whether its name alone does not say how it is made and called."""
        return not self.missing and bool(self.made_with or self._is_fed)

    @property
    def is_called(self) -> bool:
        """Whether it is known how it is called with one tensor: with queries, keys and values that are the same."""
        return not self.asked or self._is_fed

    @property
    def _is_fed(self) -> bool:
        return bool(self.asked) and all(map(is_of_attention, self.asked))

    @property
    def factory(self) -> str:
        """The text of the file that makes it."""
        names = ", ".join(sorted({self.name, *dict(self.made_with).values()}, key=lambda name: (name.lower(), name)))
        imports = f"from {self.module} import {names}"
        return _FACTORY.format(imports=imports + "\nfrom nsa_doctor import Adapter" * self._is_fed, made=self.made)

    @property
    def made(self) -> str:
        """How it is made of its arguments, and called with one tensor."""
        built = f"{self.name}({', '.join(f'{name}={kind}()' for name, kind in self.made_with)})"
        if not self._is_fed:
            return built
        return adapter_words(f"lambda: {built}" if self.made_with else self.name, self.asked)

"""A module around the subject's own, for a fault that is planted beside it."""

from torch import Tensor, nn

from nsa_doctor.subject.contract import Subject


class Around(nn.Module):
    """Answers as the subject does; who plants a fault adds the method that holds it."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.inner, self._answer = subject.build(subject.seed), subject.forward

    def forward(self, x: Tensor) -> Tensor:
        """The subject's answer."""
        output: Tensor = self._answer(self.inner, x)
        return output

"""The second training step raises: the state carried to the next sequence still hangs on the last one's graph."""

from tests.gallery.hosts.recurrence import GatedRecurrence, RecurrentStack

MODULE = ("blocks.0.mixer", "blocks.1.mixer")
CODES = {"FWD101", "GRD102", "FWD206", "GRD403"}


class Stateful(GatedRecurrence):
    def __init__(self):
        super().__init__()
        self.hidden = None

    def forward(self, x, state=None):
        if self.training and self.hidden is not None and self.hidden.shape[0] == len(x):
            state = self.hidden.to(x.dtype)
        y, self.hidden = super().forward(x, state)  # here
        return y, self.hidden


def make():
    return RecurrentStack(mixer=Stateful)

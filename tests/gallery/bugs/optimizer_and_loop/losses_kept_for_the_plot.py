"""Memory grows with every step: losses are kept for a plot without detaching them."""

from tests.gallery.hosts.llama import Llama, next_token_loss, subject

MODULE = ""
CODES = {"PRF301"}


class Trainer:
    def __init__(self):
        self.curve = []

    def step(self, model, optimizer, ids):
        optimizer.zero_grad()
        loss = next_token_loss(model, ids)
        loss.backward(retain_graph=True)
        optimizer.step()
        self.curve.append(loss)  # here
        return loss.detach()


def make():
    return subject(Llama, __name__, loss=next_token_loss, train_step=Trainer().step)

"""Each step moves by the sum of all gradients so far: the loop has no zero_grad."""

from tests.gallery.hosts.llama import Llama, next_token_loss, subject

MODULE = ""
CODES = {"GRD204"}


def train_step(model, optimizer, ids):
    loss = next_token_loss(model, ids)
    loss.backward()
    optimizer.step()  # here
    return loss.detach()


def make():
    return subject(Llama, __name__, loss=next_token_loss, train_step=train_step)

"""Nothing learns: zero_grad stands between backward and step."""

from tests.gallery.hosts.llama import Llama, next_token_loss, subject

MODULE = ""
CODES = {"GRD201", "GRD202", "GRD205"}


def train_step(model, optimizer, ids):
    loss = next_token_loss(model, ids)
    loss.backward()
    optimizer.zero_grad()  # here
    optimizer.step()
    return loss.detach()


def make():
    return subject(Llama, __name__, loss=next_token_loss, train_step=train_step)

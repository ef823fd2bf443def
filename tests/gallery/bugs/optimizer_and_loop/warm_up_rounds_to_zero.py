"""Nothing learns for a hundred steps: the warm-up divides integers, so the learning rate is zero."""

from tests.gallery.hosts.llama import Llama, next_token_loss, subject

MODULE = ""
CODES = {"GRD201", "GRD202", "GRD205"}
WARM_UP = 100


class Loop:
    def __init__(self):
        self.steps, self.base = 0, None

    def __call__(self, model, optimizer, ids):
        self.base = self.base or [group["lr"] for group in optimizer.param_groups]
        self.steps += 1
        for group, lr in zip(optimizer.param_groups, self.base, strict=True):
            group["lr"] = lr * min(1, self.steps // WARM_UP)  # here
        optimizer.zero_grad()
        loss = next_token_loss(model, ids)
        loss.backward()
        optimizer.step()
        return loss.detach()


def make():
    return subject(Llama, __name__, loss=next_token_loss, train_step=Loop())

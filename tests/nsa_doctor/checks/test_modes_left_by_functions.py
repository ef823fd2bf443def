"""GRD238: functions that leave a model in evaluation mode for a loss that follows, and those that do not."""

from textwrap import dedent
from typing import Any

import pytest

from nsa_doctor.probes.behaviour.modes_left_by_functions import LeftByFunction, left_among
from nsa_doctor.probes.model.own_files import definitions_of

GUESS = """
    def guess(model, x):
        model.eval()  # here
        with torch.no_grad():
            return model(x)
"""

FAULTY = {
    "in one function": """
        def glancing_loss(model, x, y):
            model.eval()  # here
            with torch.no_grad():
                guess = model(x)
            return cross_entropy(model(x + guess), y)
    """,
    "a method is called": """
        def step(model, optimizer, x, y):
            model.train(False)  # here
            with torch.inference_mode():
                guess = model.decode(model.encode(x))
            loss = (model.decode(x) - guess).sum()
            loss.backward()
    """,
    "by its caller": GUESS
    + """
    def self_training(student, x):
        y = guess(student, x)
        loss = (student(x) - y).square().mean()
        return loss
    """,
    "under a condition": GUESS
    + """
    def fit(net, data):
        net.train()
        for at, x in enumerate(data):
            if at % 10 == 0:
                y = guess(model=net, x=x)
            loss = net(x).sum()
            loss.backward()
    """,
    "measured in the loop": """
    def evaluate(model, data):
        model.eval()  # here
        with torch.no_grad():
            return sum(model(x) for x in data)

    def fit(model, data, held_out):
        model.train()
        for epoch in range(3):
            for x in data:
                model(x).sum().backward()
            evaluate(model, held_out)
    """,
    "methods": """
    class Trainer:
        def labels(self, x):
            self.model.eval()  # here
            with torch.no_grad():
                return self.model(x)

        def one_step(self, x):
            y = self.labels(x)
            loss = self.model(x).sub(y).sum()
            loss.backward()
    """,
}

HEALTHY = {
    "set back": """
        def glancing_loss(model, x, y):
            was = model.training
            model.eval()
            with torch.no_grad():
                guess = model(x)
            model.train(was)
            return cross_entropy(model(x + guess), y)
    """,
    "set back at last": """
        def glancing_loss(model, x, y):
            model.eval()
            try:
                with torch.no_grad():
                    guess = model(x)
            finally:
                model.train()
            return cross_entropy(model(x + guess), y)
    """,
    "the attribute is set back": """
        def guess(model, x):
            was = model.training
            model.eval()
            with torch.no_grad():
                y = model(x)
            model.training = was
            return y

        def own_loss(model, x):
            y = guess(model, x)
            return (model(x) - y).sum()
    """,
    "the caller sets it back": GUESS
    + """
    def self_training(model, x):
        y = guess(model, x)
        model.train()
        loss = (model(x) - y).sum()
        return loss
    """,
    "each epoch sets it back": GUESS
    + """
    def fit(model, data):
        for epoch in range(3):
            model.train()
            for x in data:
                model(x).sum().backward()
            guess(model, data)
    """,
    "an epoch of its own sets it back": GUESS
    + """
    def epoch(model, data):
        model.train()
        for x in data:
            model(x).sum().backward()

    def fit(model, data):
        for _ in range(3):
            epoch(model, data)
            guess(model, data)
            epoch(model, data)
    """,
    "a teacher": """
        def distillation_loss(student, teacher, x):
            teacher.eval()
            with torch.no_grad():
                y = teacher(x)
            return (student(x) - y + teacher(x)).sum()
    """,
    "another model": GUESS
    + """
    def own_loss(one, other, x):
        y = guess(other, x)
        return (one(x) - y).sum()
    """,
    "in evaluation mode on purpose": """
        def saliency_of_loss(model, x):
            model.eval()
            loss = model(x).sum()
            loss.backward()
            return x.grad
    """,
    "an input is fitted": """
        def invert(model, optimizer, x):
            model.eval()
            with torch.no_grad():
                y = model(x)
            z = torch.zeros_like(x, requires_grad=True)
            loss = (model(z) - y).sum()
            loss.backward()
            optimizer([z]).step()
            return z
    """,
    "gradients are read": """
        def importance(model, x):
            model.eval()
            with torch.no_grad():
                y = model(x)
            loss = (model(x) - y).sum()
            loss.backward()
            return [each.grad.square() for each in model.parameters()]
    """,
    "a loss of features": """
        def perceptual_loss(vgg, x, y):
            vgg.eval()
            with torch.no_grad():
                wanted = vgg(y)
            loss = (vgg(x) - wanted).square().mean()
            return loss
    """,
    "a loss that is held out": """
        def val_loss(model, x):
            model.eval()
            with torch.no_grad():
                y = model(x)
            loss = (model(x) - y).sum()
            return loss
    """,
    "an attack": """
        def attack(model, x):
            model.eval()
            with torch.no_grad():
                y = model(x)
            loss = (model(x) - y).sum()
            loss.backward()
            return x.grad
    """,
    "measuring alone": GUESS
    + """
    def evaluate(model, data):
        y = guess(model, data)
        loss = (model(data) - y).sum()
        return loss
    """,
    "without gradients": GUESS
    + """
    def fit(model, data):
        y = guess(model, data)
        with torch.no_grad():
            loss = (model(data) - y).sum()
        return loss

    @torch.no_grad()
    def held_out_loss(model, data):
        y = guess(model, data)
        return model(data).sum()
    """,
    "another way out": """
        def own_loss(model, x, is_measured):
            if is_measured:
                model.eval()
                with torch.no_grad():
                    return model(x).sum()
            return model(x).sum()
    """,
    "handed to something unknown": GUESS
    + """
    def own_loss(model, x, prepare):
        y = guess(model, x)
        prepare(model)
        return (model(x) - y).sum()
    """,
    "a context": """
        @contextmanager
        def evaluating(model):
            was = model.training
            model.eval()
            yield
            for part, mode in was:
                part.training = mode

        def own_loss(model, x):
            with evaluating(model), torch.no_grad():
                y = model(x)
            return (model(x) - y).sum()
    """,
    "a part of it": """
        def own_loss(model, x):
            model.norm.eval()
            with torch.no_grad():
                y = model(x)
            return (model(x) - y).sum()
    """,
    "saved": GUESS
    + """
    def fit(model, data):
        for x in data:
            model.train()
            model(x).sum().backward()
        y = guess(model, data)
        model.save("best")
        text = model.generate_text()
        print(text, y)
    """,
    "called before": GUESS
    + """
    def own_loss(model, x):
        loss = model(x).sum()
        loss.backward()
        return guess(model, x)
    """,
}


OF_A_PART = """
    class Matched:
        def loss(self, x, y):
            self.net.eval()
            with torch.no_grad():
                wanted = self.net(y)
            return (self.net(x) - wanted).square().mean()
"""


def found(text: str, *frozen: tuple[str, str]) -> list[LeftByFunction]:
    text = "from contextlib import contextmanager\nimport torch\n" + dedent(text)
    names: dict[str, Any] = {}
    exec(compile(text, "tests/of_modes.py", "exec"), names)
    return list(left_among(list(definitions_of(text, "tests/of_modes.py", names)), frozenset(frozen)))


@pytest.mark.parametrize("case", FAULTY)
def test_a_model_that_is_left_in_evaluation_mode_for_a_loss_is_found(case: str) -> None:
    (left,) = found(FAULTY[case])
    text = "from contextlib import contextmanager\nimport torch\n" + dedent(FAULTY[case])
    assert text.split("\n")[left.place.line - 1].endswith("# here")
    assert "(x" in text.split("\n")[left.line - 1]


@pytest.mark.parametrize("case", HEALTHY)
def test_modes_that_are_set_back_or_meant_are_left_alone(case: str) -> None:
    assert found(HEALTHY[case]) == []


def test_a_part_whose_parameters_are_all_frozen_is_left_alone() -> None:
    assert len(found(OF_A_PART)) == len(found(OF_A_PART, ("Another", "self.net"))) == 1
    assert found(OF_A_PART, ("Matched", "self.net")) == []

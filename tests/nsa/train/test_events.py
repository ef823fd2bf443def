"""TensorBoard's events: what its own reader makes of a run, and of one that was resumed."""

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nsa.train.events import Events


def steps(folder, name):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return [(each.step, round(each.value, 3)) for each in accumulator.Scalars(name)]


def test_a_run_leaves_charts_of_losses_rates_and_gates(finished):
    accumulator = EventAccumulator(str(finished / "tensorboard"))
    accumulator.Reload()
    names = {"train/loss", "train/lr", "train/grad_norm", "train/toks_per_s", "held_out/loss", "gates/1.sel"}
    assert names <= set(accumulator.Tags()["scalars"])
    assert [step for step, _ in steps(finished / "tensorboard", "train/loss")] == [2, 4, 6]


def test_steps_that_a_resumed_run_makes_again_are_shown_once(tmp_path):
    first = Events(tmp_path, 0)
    for step in (1, 2, 3):
        first.add(step, {"train/loss": float(step)})
    first.close()
    second = Events(tmp_path, 1)
    second.add(2, {"train/loss": 20.0})
    second.close()
    assert steps(tmp_path, "train/loss") == [(1, 1.0), (2, 20.0)]

"""CKP104 resume-goes-another-way

Detects: a resume after which replayed steps report different losses, the schedule or the count restarts, or an old
    checkpoint was taken.
Matters: what the checkpoint leaves out (the optimizer's moments, the data's position, the schedule) is lost each time.
Fix: save and restore optimizer, schedule, generators and the position in the data; go on from the newest checkpoint.

Example:
    # faulty
    torch.save({"model": model.state_dict()}, path)
    # correct
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    torch.save({**state, "generator": torch.get_rng_state(), "rows_given": rows_given}, path)
"""

from collections.abc import Iterator

from nsa_doctor.artifacts.training_run.resuming import Detour, detours, num_resumes
from nsa_doctor.artifacts.training_run.subject import RunSubject
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.testing.training_runs import trained

_ENDS_AT = 30


def run(subject: RunSubject) -> Iterator[Finding]:
    count = num_resumes(subject.record)
    if not count:
        raise NotApplicableError("the run was not resumed")
    found = detours(subject.record)
    if found:
        first = found[0]
        again = f"; so do {len(found) - 1} of the {count - 1} other resumes" if len(found) > 1 else ""
        yield Finding(
            message=f"{_message(first)}{again}",
            evidence={
                "run": subject.name,
                "property": first.kind,
                "step": first.step,
                "before": first.before,
                "after": first.after,
                "resumes": count,
            },
            repro=subject.reproduce,
        )


def planted(subject: RunSubject) -> RunSubject:
    from nsa.train.failures import OutOfDataError
    from nsa.train.schedule import learning_rate

    def ends(step: int, train: object) -> float:
        if step == _ENDS_AT:
            raise OutOfDataError("the disk was taken away")
        return learning_rate(step, train)  # type: ignore[arg-type]

    forgetful = {"nsa.train.saving.load_optimizer_tensors": lambda *_: None}
    sessions = ({"nsa.train.loop.learning_rate": ends}, forgetful)
    return trained(seams_of_sessions=sessions, steps=40, save_every=20, eval_every=0)


def _message(each: Detour) -> str:
    which = f"resume {each.resume}"
    match each.kind:
        case "another loss":
            return f"step {each.step} lost {each.before:.6g}, and {each.after:.6g} when it was made again after {which}"
        case "another rate":
            return f"step {each.step} had the learning rate {each.before:.6g}, and {each.after:.6g} after {which}"
        case "rate restarts":
            return (
                f"the learning rate is {each.after:.6g} at step {each.step} after {which}, as at the run's start; it "
                f"was {each.before:.6g}"
            )
        case "step count restarts":
            return f"{which} goes on with step {each.step}, and step {each.before:.0f} was next"
        case "older checkpoint":
            lost = each.before - each.after
            return (
                f"{which} came from the checkpoint of step {each.after:.0f} though that of step {each.before:.0f} "
                f"had been saved: {lost:.0f} steps were made again"
            )


CHECK = Check(doc=__doc__, run=run, planted=planted, examines="run", profile="smoke")

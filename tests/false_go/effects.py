"""What a fault does when it shows: y is the output of the module at fault, x its input, grad the gradient of y."""

from tests.false_go.fault import Effect

REFUSAL = 'raise RuntimeError(f"cannot serve {tuple(y.shape)}")'
# Kinds: loud (anything sees it), scale, small, order (in time), rows (of a batch), gradient, input.
EFFECTS = (
    Effect(name="nan", kind="loud", lines="y = y / torch.zeros_like(y)"),
    Effect(name="nan_in_one_row", kind="loud", lines="y = torch.cat([y[:1] * float('nan'), y[1:]])"),
    Effect(name="inf_at_the_end", kind="loud", lines="y = torch.cat([y[:, :-1], y[:, -1:] + float('inf')], dim=1)"),
    Effect(name="raises", kind="loud", lines=REFUSAL),
    Effect(name="wrong_index", kind="loud", lines="y = y[:, torch.arange(1, y.shape[1] + 1)]"),
    Effect(name="cut_short", kind="loud", lines="y = y[:, 1:]"),
    Effect(
        name="hangs", kind="loud", top="import time", lines="while y is not None:\n    time.sleep(0.01)", seconds=10
    ),
    Effect(name="dies", kind="loud", top="import os, signal", lines="os.kill(os.getpid(), signal.SIGKILL)"),
    Effect(name="half_as_large_again", kind="scale", lines="y = y * 1.5"),
    Effect(name="sign", kind="scale", lines="y = -y"),
    Effect(name="zeros", kind="scale", lines="y = y * 0"),
    Effect(name="a_percent", kind="small", lines="y = y * 1.01"),
    Effect(name="in_bfloat16", kind="small", lines="y = y.bfloat16().to(y.dtype)"),
    Effect(name="noise", kind="scale", lines="y = y + 0.1 * torch.randn_like(y)"),
    Effect(name="late_by_one", kind="order", lines="y = torch.cat([y[:, :1], y[:, :-1]], dim=1)"),
    Effect(name="future_leak", kind="order", lines="y = y.roll(-1, 1)"),
    Effect(name="mean_over_time", kind="order", lines="y = y - y.mean(dim=1, keepdim=True)"),
    Effect(name="other_row", kind="rows", lines="y = y.roll(1, 0)"),
    Effect(name="first_row_for_all", kind="rows", lines="y = y[:1].expand_as(y)"),
    Effect(name="rows_summed", kind="rows", lines="y = y + 0.5 * y.sum(dim=0, keepdim=True)"),
    Effect(name="detached", kind="gradient", lines="y = y.detach()"),
    Effect(name="gradient_doubled", kind="gradient", lines="y = 2 * y - y.detach()"),
    Effect(name="gradient_cut_in_time", kind="gradient", lines="y = torch.cat([y[:, :-1].detach(), y[:, -1:]], dim=1)"),
    Effect(name="gradient_nan", kind="gradient", lines="y = y + (y - y.detach()).square().sqrt()"),
    Effect(name="backward_halves", kind="gradient", phase="backward", lines="grad = grad / 2"),
    Effect(name="backward_mixes_rows", kind="gradient", phase="backward", lines="grad = grad.mean(0).expand_as(grad)"),
    Effect(name="backward_nan", kind="gradient", phase="backward", lines="grad = grad / grad.new_zeros(())"),
    Effect(name="backward_raises", kind="gradient", phase="backward", lines=REFUSAL.replace("y.", "grad.")),
    Effect(
        name="backward_hangs",
        kind="gradient",
        phase="backward",
        top="import time",
        lines="while grad is not None:\n    time.sleep(0.01)",
        seconds=10,
    ),
    Effect(name="backward_dies", kind="gradient", phase="backward", top="import os", lines="os.abort()"),
    Effect(name="input_reversed", kind="order", site="model", lines="x.data.copy_(x.data.flip(1))"),
    Effect(name="input_zeroed", kind="input", site="model", lines="x.data.zero_()"),
)

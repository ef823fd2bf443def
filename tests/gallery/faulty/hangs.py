"""Modules that do not come back, or end their process, at every place where that can happen."""

import ctypes
import os
import signal
import threading

import torch
from torch import nn

DIM = 8
RELEASED = threading.Event()  # a test that hangs a thread of its own sets it at the end


class Layer(nn.Module):
    """Residual; `act` does what the subject is faulty with, in the layer that is asked to."""

    def __init__(self, act=None):
        super().__init__()
        self.mix = nn.Linear(DIM, DIM)
        self.act = act

    def forward(self, x):
        h = self.mix(x)
        return x + (self.act(h) if self.act else h)


class Stack(nn.Module):
    """Two layers of one class, so that the class alone does not tell which; the second is faulty."""

    def __init__(self, act, layer=Layer):
        super().__init__()
        self.layers = nn.ModuleList([layer(), layer(act)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def _spin(x):
    steps = 0
    while not RELEASED.is_set():  # here
        steps = _next(steps)
    return x


def _next(steps):
    return steps + 1


def _wait(x):
    RELEASED.wait()  # here
    return x


def spins():
    return Stack(_spin)


def waits():
    return Stack(_wait)


class _SpinningLayer(Layer):
    def forward(self, x):
        for _ in range(3):
            while self.act and not RELEASED.is_set():  # here
                x = x + 0

        return super().forward(x)


def spins_in_its_own_forward():
    return Stack(torch.tanh, _SpinningLayer)


def spins_with_two_rows():
    return Stack(lambda h: _spin(h) if h.shape[0] > 1 else h)


class _Endless(nn.Module):
    def __init__(self):
        super().__init__()
        while not RELEASED.is_set():  # here
            self.made = True


class _HoldsEndless(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = _Endless()


def spins_while_made():
    return _HoldsEndless()


def spins_in_the_factory():
    while not RELEASED.is_set():  # here
        pass
    return Stack(None)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        while not RELEASED.is_set():  # here
            grad = grad + 0
        return grad


def spins_in_backward():
    return Stack(_Backward.apply)


class _Hooked(Layer):
    def forward(self, x):
        y = super().forward(x)
        if self.act and y.requires_grad:
            y.register_hook(lambda grad: self.seen(1 * grad))
        return y

    def seen(self, grad):
        while not RELEASED.is_set():  # here
            pass
        return grad


def spins_in_a_hook():
    return Stack(torch.tanh, _Hooked)


def _sleep_with_the_lock_held(x):
    ctypes.PyDLL(None).sleep(1000)  # here
    return x


def holds_the_interpreter():
    return Stack(_sleep_with_the_lock_held)


def _exit(x):
    os._exit(7)  # here


def _kill(x):
    os.kill(os.getpid(), signal.SIGKILL)  # here


def _fault(x):
    ctypes.string_at(0)  # here


def exits():
    return Stack(_exit)


def is_killed():
    return Stack(_kill)


def faults():
    return Stack(_fault)


def exits_in_the_factory():
    os._exit(7)  # here


class _ExitInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        os._exit(7)  # here


def exits_in_backward():
    return Stack(_ExitInBackward.apply)

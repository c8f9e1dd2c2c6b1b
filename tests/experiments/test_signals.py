"""Signals that ask for every run to be saved."""

import signal
import threading

import pytest

from experiments import api
from experiments.signals import ASKED, WARNED, Stopped, calling


class Screen:
    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


@pytest.mark.parametrize("number", [*ASKED, *WARNED], ids=lambda n: n.name)
def test_the_first_signal_asks_for_saving_and_only_ctrl_c_interrupts_it(number):
    stop, screen = threading.Event(), Screen()
    before = signal.getsignal(number)
    with api._stopping_on_signals(stop, screen) as came:
        signal.raise_signal(number)
        assert stop.is_set()
        for later in (*WARNED, signal.SIGTERM):
            signal.raise_signal(later)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert came[0] == number
    assert screen.lines == ["stopping: every run under way is being saved"]
    assert signal.getsignal(number) is before


def test_a_signal_that_something_else_waits_for_is_left_to_it():
    theirs, ours = [], []
    before = signal.signal(signal.SIGUSR2, lambda n, _: theirs.append(n))
    try:
        with calling(lambda n, _: ours.append(n)):
            for number in WARNED:
                signal.raise_signal(number)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert (ours, theirs) == ([signal.SIGUSR1], [signal.SIGUSR2])


def test_beside_the_main_thread_signals_are_left_alone():
    before = [signal.getsignal(number) for number in (*ASKED, *WARNED)]
    inside = []

    def look():
        with calling(lambda *_: None):
            inside.extend(signal.getsignal(number) for number in (*ASKED, *WARNED))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert inside == before


def test_the_exit_code_is_that_of_a_shell():
    assert Stopped(signal.SIGUSR1).exit_code == 138
    assert Stopped().exit_code == 130
    assert isinstance(Stopped(), KeyboardInterrupt)

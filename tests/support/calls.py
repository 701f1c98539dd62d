"""What a call enters, the same in each run: tests of it share a process with others."""

import gc
import sys


def calls_of(function, events=("call",)):
    """The code that a call enters, in order; with the event "c_call" also the caller of each function in C.

    The garbage collector is off: JAX hangs functions on it, and weak references that end have functions as well.
    """
    entered = []

    def see(frame, event, _):
        if event in events:
            entered.append(frame.f_code)

    collects = gc.isenabled()
    gc.disable()
    sys.setprofile(see)
    try:
        function()
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()
    return entered

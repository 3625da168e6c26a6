"""Expensive work that many tests share."""

import functools
import threading


def once(function):
    """Like `functools.cache`, but keeps failures too: what failed for one test fails at once for the next.

    What one thread is working out, others wait for.
    """
    outcomes, locks, guard = {}, {}, threading.Lock()

    @functools.wraps(function)
    def call(*arguments):
        with guard:
            lock = locks.setdefault(arguments, threading.Lock())
        with lock:
            if arguments not in outcomes:
                try:
                    outcomes[arguments] = (function(*arguments), None)
                except Exception as error:
                    outcomes[arguments] = (None, error)
        value, error = outcomes[arguments]
        if error is not None:
            raise error
        return value

    return call

"""Expensive work that many tests share."""

import functools


def once(function):
    """Like `functools.cache`, but keeps failures too: what failed for one test fails at once for the next."""
    outcomes = {}

    @functools.wraps(function)
    def call(*arguments):
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

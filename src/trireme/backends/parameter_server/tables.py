"""Tables that are updated by rows: what a step costs depends on the rows it touches, not on the table.

The rows of a gradient, and of the optimizer's slots for them, are copied into a *window*: a Keras variable with an
optimizer of its own. That optimizer makes its step, and the rows go back. So any optimizer that treats entries
independently works as it is. A row without a gradient stays as it is, together with its slots. For optimizers
to which a zero gradient is no change (SGD, Adagrad) that is what one device computes; momentum and Adam are
"lazy" then, as in other libraries' sparse optimizers.
"""

import keras
import numpy as np

from trireme.parameter_server import dtype_of

# Windows have a few sizes only, so that little is compiled and few optimizers are made.
_SMALLEST_WINDOW = 64
_ROWS_AT_ONCE = 1 << 16


class Table:
    """One slice of a table.

    Attributes:
        slots: the optimizer's arrays for it, each of the table's shape.
    """

    def __init__(self, piece, value, make_optimizer, compile_update):
        self._make_optimizer = make_optimizer
        self._compile_update = compile_update
        self._windows = {}
        self._dtype = dtype_of(piece.dtype)
        self._values = _initial(piece) if value is None else value
        _, optimizer, _ = self._window(1)
        self.slots = [_filled(_first(slot), self._values.shape) for slot in _slots(optimizer)]

    def apply(self, gradient, step, learning_rate):
        """The optimizer's step number `step` for the rows of a `RowGradient`.

        `learning_rate` replaces the optimizer's unless it is None.
        """
        num_rows = len(gradient.rows)
        if num_rows == 0:
            return
        window, optimizer, update = self._window(num_rows)
        slots = _slots(optimizer)
        arrays = [self._values, *self.slots]
        for variable, array in zip([window, *slots], arrays, strict=True):
            variable.assign(_padded(array[gradient.rows], window.shape))
        optimizer._iterations.assign(step)
        if learning_rate is not None:
            optimizer.learning_rate = learning_rate
        update([_padded(gradient.values, window.shape)])
        for variable, array in zip([window, *slots], arrays, strict=True):
            array[gradient.rows] = keras.ops.convert_to_numpy(variable)[:num_rows]

    def assign(self, value):
        """Other values for all rows; slots stay."""
        self._values = value

    def read(self, rows):
        """Some rows, or all, in an array of their own."""
        return self._values.copy() if rows is None else self._values[rows]

    def _window(self, num_rows):
        size = max(_SMALLEST_WINDOW, 1 << (num_rows - 1).bit_length())
        if size not in self._windows:
            shape = (size, *self._values.shape[1:])
            variable = keras.Variable(np.zeros(shape, self._dtype), dtype=self._dtype.name, name="window")
            optimizer = self._make_optimizer([variable])
            self._windows[size] = variable, optimizer, self._compile_update(optimizer, [variable])
        return self._windows[size]


def _slots(optimizer):
    return [v for v in optimizer.variables if v is not optimizer._iterations and len(v.shape) > 1]


def _first(slot):
    return keras.ops.convert_to_numpy(slot).reshape(-1)[0]


def _filled(value, shape):
    # Zeros take no memory until a row is touched.
    return np.zeros(shape, value.dtype) if value == 0 else np.full(shape, value)


def _padded(rows, shape):
    padded = np.zeros(shape, rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _initial(piece):
    """What the `initializer`, in Keras' serialized form, draws; each block of rows from a seed of its own."""
    values = np.empty(piece.shape, dtype_of(piece.dtype))
    for start in range(0, piece.shape[0], _ROWS_AT_ONCE):
        block = values[start : start + _ROWS_AT_ONCE]
        serialized = piece.initializer["initializer"]
        config = dict(serialized["config"])
        if "seed" in config:
            seeds = np.random.SeedSequence([piece.initializer["seed"], piece.start + start])
            config["seed"] = int(seeds.generate_state(1)[0] >> 1)
        initializer = keras.initializers.get({**serialized, "config": config})
        block[...] = keras.ops.convert_to_numpy(initializer(block.shape, piece.dtype))
    return values

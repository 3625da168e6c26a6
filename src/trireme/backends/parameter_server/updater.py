"""The server's half: owns the Keras optimizer, and everything that it changes.

A server computes on a CPU, with the Keras backend of the run. Variables that workers hold as a whole are
Keras variables of one optimizer here, so that any optimizer does what it does on one device; tables of which
workers take rows are in `tables.py`.
"""

import keras
import numpy as np

from trireme.backends.parameter_server import backend_side
from trireme.backends.parameter_server.tables import Table
from trireme.parameter_server import RowGradient


class KerasUpdater:
    """An `Updater`. Its settings are those that `description.describe` makes of a model:

    `optimizer` is the optimizer in Keras' serialized form, `variables` has for each variable what an optimizer
    asks of it, `learning_rate` replaces the optimizer's, and an increase of `finalized` makes the averages of
    `use_ema` the values.
    """

    def __init__(self):
        self._settings = {}
        self._pieces = {}
        self._variables = {}
        self._tables = {}
        self._optimizer = None
        self._updates = {}
        # Values of variables as arrays, until something may have changed them.
        self._newest = {}
        self._num_finalized = 0
        self._side = backend_side(keras.backend.backend())

    def configure(self, settings):
        self._settings = self._settings | settings
        # An optimizer's averages may take the place of values.
        self._newest = {}
        if self._optimizer is not None:
            if "learning_rate" in settings:
                self._optimizer.learning_rate = settings["learning_rate"]
            self._finalize()

    def create(self, piece, value):
        self._pieces[piece.name] = piece
        if self._facts(piece)["is_table"]:
            self._tables[piece.name] = Table(piece, value, self._make_optimizer, self._side.compile_update)
            return
        variable = keras.Variable(value, dtype=piece.dtype, trainable=piece.trainable, name="variable")
        constraint = self._facts(piece)["constraint"]
        variable.constraint = keras.constraints.get(constraint) if constraint is not None else None
        self._variables[piece.name] = variable

    def assign(self, name, value):
        if name in self._tables:
            self._tables[name].assign(value)
        else:
            self._variables[name].assign(value)
            self._newest.pop(name, None)

    def apply(self, gradients):
        self._build()
        self._newest = {}
        if touched := [name for name in self._tables if name in gradients]:
            step = int(self._optimizer._iterations)
            for name in touched:
                self._tables[name].apply(gradients[name], step, self._settings.get("learning_rate"))
        named = {name: gradient for name, gradient in gradients.items() if name in self._variables}
        if named:
            values = self._update(tuple(named))([self._dense(name, grad) for name, grad in named.items()])
            self._newest = dict(zip(named, values, strict=True))
        else:
            # An optimizer that was given nothing does not count the step.
            self._optimizer._iterations.assign_add(1)

    def read(self, name, rows):
        if name in self._tables:
            return self._tables[name].read(rows)
        if name not in self._newest:
            self._newest[name] = _host(self._variables[name])
        value = self._newest[name]
        return value if rows is None else value[rows]

    def optimizer_state(self):
        self._build()
        state = {f"optimizer/{i}": _host(variable) for i, variable in enumerate(self._optimizer.variables)}
        for name, table in self._tables.items():
            state |= {f"table/{name}/{i}": slot for i, slot in enumerate(table.slots)}
        return state | {"finalized": np.asarray(self._num_finalized)}

    def restore(self, optimizer_state):
        self._num_finalized = int(optimizer_state["finalized"])
        self._build()
        for i, variable in enumerate(self._optimizer.variables):
            variable.assign(optimizer_state[f"optimizer/{i}"])
        for name, table in self._tables.items():
            table.slots = [optimizer_state[f"table/{name}/{i}"] for i in range(len(table.slots))]

    def _facts(self, piece):
        return self._settings["variables"][piece.variable]

    def _build(self):
        if self._optimizer is None:
            variables = list(self._variables.values())
            excluded = [
                v for name, v in self._variables.items() if not self._facts(self._pieces[name])["decays"]
            ]
            self._optimizer = self._make_optimizer(variables, excluded)
            self._finalize()

    def _make_optimizer(self, variables, excluded=()):
        optimizer = keras.saving.deserialize_keras_object(self._settings["optimizer"])
        if excluded:
            optimizer.exclude_from_weight_decay(var_list=list(excluded))
        optimizer.build(variables)
        if "learning_rate" in self._settings:
            optimizer.learning_rate = self._settings["learning_rate"]
        return optimizer

    def _dense(self, name, gradient):
        if isinstance(gradient, RowGradient):
            dense = np.zeros(self._pieces[name].shape, gradient.values.dtype)
            dense[gradient.rows] = gradient.values
            gradient = dense
        return gradient

    def _update(self, names):
        if names not in self._updates:
            variables = [self._variables[name] for name in names]
            self._updates[names] = self._side.compile_update(self._optimizer, variables)
        return self._updates[names]

    def _finalize(self):
        number = self._settings.get("finalized", 0)
        if number > self._num_finalized:
            self._num_finalized = number
            self._optimizer.finalize_variable_values(list(self._variables.values()))


def _host(variable):
    return np.array(keras.ops.convert_to_numpy(variable))

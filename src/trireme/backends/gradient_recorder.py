"""What gradients an optimizer would be given, told by an optimizer that keeps them and changes nothing."""

import contextlib

import keras


class GradientRecorder(keras.optimizers.Optimizer):
    """Keeps the gradients of the last step in variables of its own, so that compiled steps can leave them there."""

    def __init__(self):
        super().__init__(learning_rate=1.0, name="gradient_recorder")

    def build(self, variables):
        """Makes a variable for each gradient."""
        if self.built:
            return
        super().build(variables)
        self.gradients = self.add_optimizer_variables(variables, "gradient")

    def update_step(self, gradient, variable, learning_rate):
        """Keeps `gradient`."""
        kept = self.gradients[self._get_variable_index(variable)]
        self.assign(kept, keras.ops.zeros(kept.shape, kept.dtype))
        # Adding is what works for sparse gradients too.
        self.assign_add(kept, keras.ops.cast(gradient, kept.dtype))

    def recorded(self):
        """Returns `(path of the variable, gradient)` for each."""
        return [
            (variable.path, keras.ops.convert_to_numpy(kept).copy())
            for variable, kept in zip(self._trainable_variables, self.gradients, strict=True)
        ]


@contextlib.contextmanager
def recording_gradients(model):
    """Puts recorders in the place of the optimizers of `model`; returns a function that returns what they hold."""
    optimizers = {
        name: value for name, value in vars(model).items() if isinstance(value, keras.optimizers.Optimizer)
    }
    recorders = {id(optimizer): GradientRecorder() for optimizer in optimizers.values()}
    for name, optimizer in optimizers.items():
        object.__setattr__(model, name, recorders[id(optimizer)])
    if getattr(model, "optimizer", None) is not None:
        model.optimizer.build(model.trainable_variables)
    try:
        yield lambda: [
            each for recorder in recorders.values() if recorder.built for each in recorder.recorded()
        ]
    finally:
        for name, optimizer in optimizers.items():
            object.__setattr__(model, name, optimizer)

"""A `train_step` of the user's own, with a plain mean loss, for each backend, as Keras' guides write it."""


def make_model_class():
    """Returns a `keras.Sequential` whose step is written by hand for the backend in use."""
    import keras

    return {"tensorflow": _for_tensorflow, "jax": _for_jax, "torch": _for_torch}[keras.backend.backend()]()


def _mean_squared_error(y, y_pred):
    import keras

    return keras.ops.mean(keras.ops.square(y - y_pred))


def _for_tensorflow():
    import keras
    import tensorflow as tf

    class Model(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = _mean_squared_error(y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self._loss_tracker.update_state(loss)
            return {"loss": self._loss_tracker.result()}

    return Model


def _for_torch():
    import keras
    import torch

    class Model(keras.Sequential):
        def train_step(self, data):
            x, y = data
            self.zero_grad()
            loss = _mean_squared_error(y, self(x, training=True))
            loss.backward()
            weights = list(self.trainable_weights)
            gradients = [weight.value.grad for weight in weights]
            with torch.no_grad():
                self.optimizer.apply(gradients, weights)
            self._loss_tracker.update_state(loss)
            return {"loss": self._loss_tracker.result()}

    return Model


def _for_jax():
    import jax
    import keras

    class Model(keras.Sequential):
        def loss_of(self, trainable, non_trainable, x, y):
            y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=True)
            return _mean_squared_error(y, y_pred), non_trainable

        def train_step(self, state, data):
            trainable, non_trainable, optimizer, metrics = state
            x, y = data
            gradient_of = jax.value_and_grad(self.loss_of, has_aux=True)
            (loss, non_trainable), gradients = gradient_of(trainable, non_trainable, x, y)
            trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
            metrics = self._loss_tracker.stateless_update_state(metrics, loss)
            logs = {"loss": self._loss_tracker.stateless_result(metrics)}
            return logs, (trainable, non_trainable, optimizer, metrics)

    return Model

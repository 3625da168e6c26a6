"""A `train_step` of two networks with an optimizer each, as the guides write a GAN, for each backend."""


def make_pair_class():
    """Returns a model class whose data are `(noise, real rows)`."""
    import keras

    class Pair(keras.Model):
        def __init__(self):
            super().__init__()
            self.generator = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
            self.critic = keras.Sequential(
                [keras.layers.Input((2,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
            )
            self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
            self.critic_loss = keras.metrics.Mean(name="critic_loss")

        def call(self, noise):
            return self.critic(self.generator(noise))

        def compile(self, generator_optimizer, critic_optimizer):
            super().compile()
            self.generator_optimizer = generator_optimizer
            self.critic_optimizer = critic_optimizer

        def critics(self, noise, real):
            ops = keras.ops
            drawn = self.generator(noise)
            logits = ops.concatenate([self.critic(real), self.critic(drawn)], axis=1)
            return self.loss_of(
                ops.concatenate([ops.ones_like(real[:, :1]), ops.zeros_like(real[:, :1])], 1), logits
            )

        def generators(self, noise, real):
            logits = self.critic(self.generator(noise))
            return self.loss_of(keras.ops.ones_like(logits), logits)

        def train_step(self, data):
            for part, optimizer, loss in (
                (self.critic, self.critic_optimizer, self.critics),
                (self.generator, self.generator_optimizer, self.generators),
            ):
                value = descend(part.trainable_weights, optimizer, lambda loss=loss: loss(*data))
                if part is self.critic:
                    self.critic_loss.update_state(value)
            return {"critic_loss": self.critic_loss.result()}

    return _on_jax(Pair) if keras.backend.backend() == "jax" else Pair


def _on_jax(pair_class):
    """Returns the class for JAX, whose step carries the state of one optimizer: the model holds that of the other."""
    import jax
    import keras

    class PairOnJax(pair_class):
        def compile(self, generator_optimizer, critic_optimizer):
            keras.Model.compile(self, generator_optimizer)
            self.critic_optimizer = critic_optimizer
            generator_optimizer.build(self.generator.trainable_variables)
            critic_optimizer.build(self.critic.trainable_variables)
            self.critic_optimizer_variables = critic_optimizer.variables

        def train_step(self, state, data):
            state = list(state)
            lists = [self.trainable_variables, self.non_trainable_variables, None, self.metrics_variables]

            def value_of(index, variables):
                numbers = {id(variable): number for number, variable in enumerate(lists[index])}
                return [state[index][numbers[id(variable)]] for variable in variables]

            def replace(index, variables, values):
                new = dict(zip(map(id, variables), values, strict=True))
                pairs = zip(lists[index], state[index], strict=True)
                state[index] = [new.get(id(variable), value) for variable, value in pairs]

            def descend_on(part, loss, optimizer, optimizer_values):
                def loss_of(values):
                    mapping = {id(v): (v, value) for v, value in zip(lists[0], state[0], strict=True)}
                    mapping |= {id(v): (v, value) for v, value in zip(part, values, strict=True)}
                    with keras.StatelessScope(state_mapping=mapping.values()):
                        return loss(*data)

                loss_value, gradients = jax.value_and_grad(loss_of)(value_of(0, part))
                values, optimizer_values = optimizer.stateless_apply(
                    optimizer_values, gradients, value_of(0, part)
                )
                replace(0, part, values)
                return loss_value, optimizer_values

            own = self.critic_optimizer_variables
            value, critics = descend_on(
                self.critic.trainable_variables, self.critics, self.critic_optimizer, value_of(1, own)
            )
            replace(1, own, critics)
            _, state[2] = descend_on(
                self.generator.trainable_variables, self.generators, self.optimizer, state[2]
            )
            counted = self.critic_loss.variables
            replace(3, counted, self.critic_loss.stateless_update_state(value_of(3, counted), value))
            logs = {"critic_loss": self.critic_loss.stateless_result(value_of(3, counted))}
            return logs, tuple(state)

    return PairOnJax


def descend(weights, optimizer, loss):
    """Makes one step of `optimizer` down the gradient of `loss()`, and returns the loss."""
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss()
        optimizer.apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))
        return value
    import torch

    for weight in weights:
        weight.value.grad = None
    value = loss()
    value.backward()
    with torch.no_grad():
        optimizer.apply([weight.value.grad for weight in weights], weights)
    return value.detach()

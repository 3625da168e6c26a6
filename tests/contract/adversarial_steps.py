"""A `train_step` of two networks with an optimizer each, as the guides write a GAN, for tensorflow and torch."""


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

    return Pair


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

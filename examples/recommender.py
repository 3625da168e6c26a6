"""A recommender that learns from ratings: two towers, each an embedding, whose scalar product is the rating.

Asynchronous training is at home here: of large tables a batch touches few rows, and those are all that travels.

trireme run --workers 2 --servers 1 examples/recommender.py            asynchronously
python examples/recommender.py --strategy one_device                   on one device, for comparison
trireme run --replicas 2 examples/recommender.py --strategy mirrored   synchronously

The ratings are made here, by a generator that has what is hard about real ones: a few users rate much and a few items
are rated much (Zipf's law), users and items have a bias of their own, taste is a product of few factors, and there is
noise that nobody can predict. Its variance, 0.25, is the loss that no model gets below.
"""

import argparse
import json
import pathlib

import keras
import numpy as np

import trireme

NUM_USERS, NUM_ITEMS, NUM_RATINGS, NUM_FACTORS, NOISE = 2000, 1000, 80_000, 4, 0.5
STRATEGIES = {
    "parameter_server": trireme.ParameterServerStrategy,
    "mirrored": trireme.MirroredStrategy,
    "one_device": trireme.OneDeviceStrategy,
}

parser = argparse.ArgumentParser()
parser.add_argument("--strategy", choices=STRATEGIES, default="parameter_server")
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--batch-size", type=int, default=256)
parser.add_argument(
    "--by-rows", action="store_true", help="keep the tables on the servers, whatever their size"
)
parser.add_argument("--save", type=pathlib.Path, help="file for the results, as JSON")
arguments = parser.parse_args()


def make_ratings(seed=0):
    """Returns users, items and ratings, each an array of `NUM_RATINGS`, in random order."""
    luck = np.random.default_rng(seed)

    def drawn(count):
        # The k-th most active is drawn about in proportion to 1 / k.
        chances = 1 / np.arange(1, count + 1)
        return luck.choice(count, NUM_RATINGS, p=chances / chances.sum()).astype("int32")

    users, items = drawn(NUM_USERS), drawn(NUM_ITEMS)
    taste = luck.normal(size=(NUM_USERS, NUM_FACTORS)) / NUM_FACTORS**0.25
    kind = luck.normal(size=(NUM_ITEMS, NUM_FACTORS)) / NUM_FACTORS**0.25
    bias = 0.5 * luck.normal(size=NUM_USERS)[users] + 0.5 * luck.normal(size=NUM_ITEMS)[items]
    ratings = (taste[users] * kind[items]).sum(1) + bias + NOISE * luck.normal(size=NUM_RATINGS)
    return users, items, ratings.astype("float32")


def make_model():
    """Returns the two towers: factors and bias for each user and each item."""
    user, item = keras.Input((), dtype="int32", name="user"), keras.Input((), dtype="int32", name="item")
    small = keras.initializers.RandomNormal(stddev=0.1)

    def tower(ids, count, name):
        row = keras.layers.Embedding(count, 2 * NUM_FACTORS + 1, embeddings_initializer=small, name=name)(ids)
        return row[:, :-1], row[:, -1]

    user_factors, user_bias = tower(user, NUM_USERS, "users")
    item_factors, item_bias = tower(item, NUM_ITEMS, "items")
    rating = keras.ops.sum(user_factors * item_factors, axis=-1) + user_bias + item_bias
    return keras.Model({"user": user, "item": item}, rating)


keras.utils.set_random_seed(1)
users, items, ratings = make_ratings()
num_train = NUM_RATINGS * 9 // 10
train, validation = slice(0, num_train), slice(num_train, None)

options = {"min_table_bytes": 0} if arguments.by_rows else {}
strategy = STRATEGIES[arguments.strategy](**options)
with strategy.scope():
    model = make_model()
    model.compile(keras.optimizers.Adagrad(0.2), "mse")
history = model.fit(
    {"user": users[train], "item": items[train]},
    ratings[train],
    batch_size=arguments.batch_size,
    epochs=arguments.epochs,
    validation_data=({"user": users[validation], "item": items[validation]}, ratings[validation]),
    validation_batch_size=2048,
    verbose=2,
)
if trireme.is_chief():
    print(f"validation loss {history.history['val_loss'][-1]:.4f}; noise alone has {NOISE**2:.4f}")
    if arguments.save:
        arguments.save.write_text(json.dumps(history.history))

"""What can be told about a `tf.data` pipeline by looking at it: whether, and how, its order comes back."""

_SHUFFLES = "Shuffle"
# Below a shuffle, these make its later orders depend on how far earlier iterations went.
_DEPEND_ON_READING = ("Repeat", "Cache")


def shuffle_seeds(dataset):
    """Returns the pair of seeds of each shuffle of the pipeline, from its end to its sources.

    A pair of zeros is a shuffle in an order that nobody can repeat.
    """
    return [
        [int(node._seed), int(node._seed2)]
        for node in _nodes(dataset)
        if _SHUFFLES in type(node).__name__ and hasattr(node, "_seed2")
    ]


def depends_on_reading(dataset):
    """Whether the order of an iteration depends on how many batches were read of those before it.

    Else it depends on their number only: each draws its seeds when it begins.
    """
    return any(
        any(word in type(node).__name__ for word in _DEPEND_ON_READING) and shuffle_seeds(node)
        for node in _nodes(dataset)
    )


def _nodes(dataset):
    yield dataset
    for source in dataset._inputs():
        yield from _nodes(source)

"""An iterator of a `tf.data` pipeline ends on a thread of its own, since that may take up to a minute."""

from trireme.testing import run_workers


def end_of_an_iterator():
    """Returns what holds an iterator's resource: after Python let go of the iterator, and after the thread."""
    import threading
    import weakref

    import tensorflow as tf

    from trireme.backends.tf_data import EndsAside

    class Waiting(threading.Thread):
        def start(self):
            threads.append(self)

    threads, original = [], threading.Thread
    iterator = iter(EndsAside(tf.data.Dataset.range(10).batch(2).prefetch(2)))
    first = tf.function(lambda batches: next(batches))(iterator).numpy().tolist()
    resource = weakref.ref(iterator._iterator_resource)
    threading.Thread = Waiting
    del iterator
    threading.Thread = original
    held = resource() is not None
    for thread in threads:
        thread.run()
    return first, len(threads), held, resource() is not None


def two_epochs_of_both():
    """Returns two shuffled epochs of a pipeline as it is, and of one that ends its iterators aside."""
    import tensorflow as tf

    from trireme.backends.tf_data import EndsAside

    def epochs(wrap):
        tf.random.set_seed(3)
        dataset = wrap(tf.data.Dataset.range(20).shuffle(20).batch(4))
        assert isinstance(dataset, tf.data.Dataset) and int(dataset.cardinality()) == 5
        return [[batch.tolist() for batch in dataset.as_numpy_iterator()] for _ in range(2)]

    return epochs(lambda dataset: dataset), epochs(EndsAside)


def test_an_iterator_ends_on_a_thread_of_its_own():
    [seen] = run_workers(end_of_an_iterator, 1, backend="tensorflow", timeout_s=200)
    assert seen == ([0, 1], 1, True, False)


def test_batches_are_those_of_the_pipeline():
    [(plain, aside)] = run_workers(two_epochs_of_both, 1, backend="tensorflow", timeout_s=200)
    assert plain == aside and plain[0] != plain[1]

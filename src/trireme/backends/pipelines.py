"""What can be told about an input by looking at it: whether, and how, its order comes back."""

from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.grain_dataset_adapter import GrainDatasetAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.data_adapters.torch_data_loader_adapter import TorchDataLoaderAdapter
from keras.utils import PyDataset

_SHUFFLES = "Shuffle"
# Below a shuffle, these make its later orders depend on how far earlier iterations went.
_DEPEND_ON_READING = ("Repeat", "Cache")


def problem_of(adapter):
    """Returns what to tell the user about an input that cannot be repeated, or None.

    Args:
        adapter: the adapter that Keras has chosen for what the user passed.
    """
    if isinstance(adapter, TFDatasetAdapter):
        if [0, 0] not in shuffle_seeds(adapter._dataset):
            return None
        return (
            "The pipeline shuffles in an order that nothing can repeat, so after a restart rows of the "
            "interrupted epoch may come again or not at all. Call keras.utils.set_random_seed(...) before "
            "the pipeline is made, or pass `shuffle` a seed."
        )
    reason = _without_position(adapter)
    return reason and (
        f"The input has no position that can be saved ({reason}). After a restart as many batches are read "
        "and dropped as were trained, which is right only if it yields the same ones again. Arrays and "
        "tf.data pipelines have one."
    )


def _without_position(adapter):
    if isinstance(adapter, ArrayDataAdapter | GrainDatasetAdapter):
        return None
    if isinstance(adapter, TorchDataLoaderAdapter):
        loader = adapter._dataloader
        # Its state goes on from epoch to epoch, and a program that is started again begins with the first.
        has_own = any(getattr(part, "generator", None) is not None for part in (loader, loader.sampler))
        return "a DataLoader that draws from a generator of its own" if has_own else None
    if isinstance(adapter, PyDatasetAdapter):
        kind = type(adapter.py_dataset)
        if (
            kind.on_epoch_begin is not PyDataset.on_epoch_begin
            or kind.on_epoch_end is not PyDataset.on_epoch_end
        ):
            return "a PyDataset that changes between epochs"
        return "a PyDataset shuffled by its threads" if adapter.enqueuer and adapter.shuffle else None
    return {"GeneratorDataAdapter": "a generator"}.get(type(adapter).__name__, type(adapter).__name__)


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

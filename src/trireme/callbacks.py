"""Keras callbacks for users, made without loading Keras before it is needed."""

import os
from typing import Any

__all__ = ["BackupAndRestore"]


def BackupAndRestore(location: str | os.PathLike[str], save_freq: str | int = "epoch", keep: int = 3) -> Any:
    """Returns a callback for `fit` that survives the end of the process: a killed run goes on where it was.

    ```python
    model.fit(x, y, epochs=10, callbacks=[trireme.BackupAndRestore("runs/backup", save_freq=100)])
    ```

    Started again with the same backup, the program continues in the middle of the epoch: weights, optimizer,
    metrics so far, random layers, the order of the data, `EarlyStopping`, `ReduceLROnPlateau`, `ModelCheckpoint`
    and the history are those of the run before. With as many workers as before, the weights are those of a run
    that was never disturbed. A program whose training is finished has nothing left to train, until it asks
    for more epochs.

    Backups are written in the background by worker 0; damaged ones are passed over. On SIGTERM all
    workers stop at the same step, save, and exit with code 143. Every worker needs the callback.

    Args:
        location: a folder, which may be missing, or anything `fsspec` opens, such as "gs://bucket/run".
        save_freq: "epoch", or the number of steps between two backups.
        keep: how many backups are kept, the newest ones.

    Raises:
        UsageError: a value is impossible; or, in `fit`, the backup is of another model or other data.
        BackupDamaged: in `fit`, there are backups and none of them is whole.
    """
    from trireme.backends.backup import BackupAndRestore as Callback

    return Callback(location, save_freq, keep)

"""The numbers of the rounds of one `fit`: two for each epoch, its training and its validation, and one to end."""

import dataclasses


@dataclasses.dataclass
class Plan:
    """Which rounds a `fit` takes; all workers count alike.

    Attributes:
        first_round: number of the first.
        initial_epoch: epoch of the first round.
        epochs: the epoch at which training ends.
        next_epoch: the epoch that this worker does next.
    """

    first_round: int
    initial_epoch: int
    epochs: int
    next_epoch: int

    def __init__(self, first_round, initial_epoch, epochs, current_round):
        self.first_round = first_round
        self.initial_epoch = initial_epoch
        self.epochs = max(epochs, initial_epoch)
        # A worker that joins goes on where the others are; in a validation, with the epoch after it.
        missed = max(0, current_round - first_round + 1) // 2
        self.next_epoch = min(initial_epoch + missed, self.epochs)

    @property
    def epochs_left(self):
        return self.next_epoch < self.epochs

    def begin_next(self, begin):
        """Goes on with the first epoch that `begin` finds to be under way; returns False if none is left.

        A worker that was away for long may have missed some, and the chief may have ended the training.
        """
        while self.epochs_left:
            if begin(self.next_epoch):
                return True
            self.next_epoch += 1
        return False

    @property
    def last_round(self):
        return self.training_round(self.epochs)

    def training_round(self, epoch):
        return self.first_round + 2 * (epoch - self.initial_epoch)

    def validation_round(self, epoch):
        return self.training_round(epoch) + 1

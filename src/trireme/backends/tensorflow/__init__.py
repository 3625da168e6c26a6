"""TensorFlow: one process per device; gradients are exchanged inside the traced step."""


def create_backend():
    """Returns the backend object; called once per process by `trireme.backends.load`."""
    from trireme.backends.tensorflow.backend import TensorFlowBackend

    return TensorFlowBackend()

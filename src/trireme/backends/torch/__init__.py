"""PyTorch: one process per device; gradients are exchanged while the backward pass still runs."""


def create_backend():
    """Returns the backend object; called once per process by `trireme.backends.load`."""
    from trireme.backends.torch.backend import TorchBackend

    return TorchBackend()

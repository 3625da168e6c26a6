"""JAX: one process drives all devices of a machine by sharding (SPMD); several processes by `jax.distributed`."""


def create_backend():
    """Returns the backend object; called once per process by `trireme.backends.load`."""
    from trireme.backends.jax.backend import JaxBackend

    return JaxBackend()

"""JAX: closed jaxprs to the project's IR. Nothing here imports jax but `tracing`."""

"""JAX: closed jaxprs to the project's IR. What needs jax imports it when called."""

"""A simulated engine, a simulated cluster and a simulated site; nothing here is a measurement."""

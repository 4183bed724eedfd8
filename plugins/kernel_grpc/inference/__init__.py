"""ModelInfer and ModelStreamInfer: a message becomes a request of the kernel, its responses become messages."""

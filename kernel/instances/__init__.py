"""Where one batch is executed, and how its result comes back: on the loop, on threads, elsewhere. Decides nothing."""

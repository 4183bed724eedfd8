"""The differential suite: the same repositories and requests for the real Triton and for ours; every difference is listed."""

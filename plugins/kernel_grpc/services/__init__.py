"""The other RPCs of Triton's service, health and reflection; and the one list of all methods, which the front end serves."""

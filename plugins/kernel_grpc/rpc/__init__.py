"""gRPC on HTTP/2, for whatever services: connections on the loop, calls, deadlines, status. Knows no tensors, no models."""

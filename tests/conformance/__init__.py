"""One list of protocol cases, run over HTTP and over gRPC against one served repository."""

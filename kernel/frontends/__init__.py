"""What every wire needs: listening, connections, TLS, restrictions, the forms of tensors and metadata. Speaks no protocol."""

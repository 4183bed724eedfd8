"""kernel_python.process: python models in processes of their own, one child an instance (placement `process`).

`child/` runs in the children; it and what it shares with the server (pool.py, wire.py, and of kernel_python whatever models can
see) runs on Python 3.9 with numpy alone. Everything else here is the server's side.
"""

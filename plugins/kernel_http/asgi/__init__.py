"""The same HTTP API as an ASGI 3 application: an app's own server keeps the connections, and we answer.

The public name is KernelApp.
"""

from __future__ import annotations

from kernel_http.asgi.app import KernelApp

__all__ = ["KernelApp"]

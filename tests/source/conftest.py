"""The scripted server and the certificate are there for these tests too."""

from tests.transport.conftest import authority, serve

__all__ = ["authority", "serve"]

"""The scripted server is there for these tests too."""

from tests.transport.conftest import serve

__all__ = ["serve"]

"""tonne packs AI models into OCI artifacts, mounts them lazily, and pulls, verifies and copies them."""

__version__ = "0.1.0"

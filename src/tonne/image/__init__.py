"""Images as a whole: pack, view, pull, verify, copy."""

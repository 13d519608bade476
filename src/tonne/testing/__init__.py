"""What tests and demonstrations need: fault registry, faulty disk, virtual clock, computed images.

`python -m tonne.testing serve` runs a registry with an image of any size.
"""

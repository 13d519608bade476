"""Sources: anything that answers ``GET blob, Range``, and the wrappers that make a good one out of several.

`tonne.source.seam` has the interfaces.  Kinds: registry, layout, memory.  Wrappers: retry, failover, limit,
singleflight.  `tonne.source.compose` puts them together, in one function.
"""

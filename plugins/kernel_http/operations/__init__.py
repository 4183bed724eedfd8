"""Everything but inference: health, metadata, the repository, statistics, settings, shared memory.

Most are quick: head and body go in, the whole answer comes out at once.
"""

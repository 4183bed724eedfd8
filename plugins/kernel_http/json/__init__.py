"""JSON as clients write it: its members by type, arrays to and from nested lists, mistakes in the reference's words.

Knows no request, no connection and no model.
"""

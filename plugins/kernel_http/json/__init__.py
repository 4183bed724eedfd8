"""JSON as clients write it: what is wrong with a document in the reference's words, and arrays to and from nested lists.

Knows no request, no connection and no model.
"""

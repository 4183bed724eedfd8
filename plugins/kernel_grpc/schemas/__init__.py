"""The schemas on the wire, and what is generated from them by `python3 dev.py proto`. No code is written here by hand."""

"""No TritonPythonModel here."""

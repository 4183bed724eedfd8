"""One loaded version of a model: its config, its instances, the check that each request passes, its way in and out."""

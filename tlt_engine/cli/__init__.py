"""The command ``tlt-engine``."""
